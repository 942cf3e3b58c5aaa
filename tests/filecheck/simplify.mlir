// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// RUN: gradopt-opt %s --split-input-file --gradopt-simplify | filecheck %s

// Constants and algebra, a function a rule: first what becomes simpler, then what looks alike and
// must stay. simplify-moves.mlir and simplify-products.mlir hold the other rules.

!s = tensor<f32>
!v = tensor<3xf32>
!h = tensor<3xf16>
!i = tensor<3xi32>
!b = tensor<3xi1>

// --- constants -----------------------------------------------------------------------------------

// CHECK-LABEL: func.func @fold_splat(
// CHECK-NEXT:    [[C:%[a-z0-9]+]] = "gradopt.constant"() {value = dense<5.0{{.*}}> : tensor<100000xf32>}
// CHECK-NEXT:    return [[C]]
func.func @fold_splat() -> tensor<100000xf32> {
  %a = "gradopt.constant"() {value = dense<2.0> : tensor<100000xf32>} : () -> tensor<100000xf32>
  %b = "gradopt.constant"() {value = dense<3.0> : tensor<100000xf32>} : () -> tensor<100000xf32>
  %0 = "gradopt.add"(%a, %b) : (tensor<100000xf32>, tensor<100000xf32>) -> tensor<100000xf32>
  return %0 : tensor<100000xf32>
}

// CHECK-LABEL: func.func @fold_moved_splat(
// CHECK-NEXT:    [[C:%[a-z0-9]+]] = "gradopt.constant"() {value = dense<2.0{{.*}}> : tensor<5000x4xf32>}
// CHECK-NEXT:    return [[C]]
func.func @fold_moved_splat() -> tensor<5000x4xf32> {
  %a = "gradopt.constant"() {value = dense<2.0> : !s} : () -> !s
  %0 = "gradopt.broadcast"(%a) {shape = array<i64: 4, 5000>, dims = array<i64>}
      : (!s) -> tensor<4x5000xf32>
  %1 = "gradopt.transpose"(%0) {permutation = array<i64: 1, 0>}
      : (tensor<4x5000xf32>) -> tensor<5000x4xf32>
  %2 = "gradopt.reshape"(%1) {shape = array<i64: 20000>} : (tensor<5000x4xf32>) -> tensor<20000xf32>
  %3 = "gradopt.reshape"(%2) {shape = array<i64: 5000, 4>}
      : (tensor<20000xf32>) -> tensor<5000x4xf32>
  return %3 : tensor<5000x4xf32>
}

// CHECK-LABEL: func.func @fold_elements(
// CHECK-NEXT:    [[C:%[a-z0-9]+]] = "gradopt.constant"() {value = dense<6> : tensor<i32>}
// CHECK-NEXT:    return [[C]]
func.func @fold_elements() -> tensor<i32> {
  %a = "gradopt.constant"() {value = dense<[1, 2, 3]> : !i} : () -> !i
  %0 = "gradopt.sum"(%a) {axes = array<i64: 0>} : (!i) -> tensor<i32>
  return %0 : tensor<i32>
}

// CHECK-LABEL: func.func @fold_several_results(
// CHECK-DAG:     [[A:%[a-z0-9_]+]] = "gradopt.constant"() {value = dense<[1, 2, 3]> : tensor<3xi32>}
// CHECK-DAG:     [[B:%[a-z0-9_]+]] = "gradopt.constant"() {value = dense<[4, 5, 6]> : tensor<3xi32>}
// CHECK:         return [[A]], [[B]]
func.func @fold_several_results() -> (!i, !i) {
  %a = "gradopt.constant"() {value = dense<[[1, 2, 3], [4, 5, 6]]> : tensor<2x3xi32>}
      : () -> tensor<2x3xi32>
  %0:2 = "gradopt.unstack"(%a) {axis = 0 : i64} : (tensor<2x3xi32>) -> (!i, !i)
  return %0#0, %0#1 : !i, !i
}

// A result that is large and no splat is not folded; neither is one that only partly is constant.
// CHECK-LABEL: func.func @fold_not_large(
// CHECK:         "gradopt.broadcast"
func.func @fold_not_large() -> tensor<2x5000xf32> {
  %a = "gradopt.constant"() {value = dense<[1.0, 2.0]> : tensor<2xf32>} : () -> tensor<2xf32>
  %0 = "gradopt.broadcast"(%a) {shape = array<i64: 2, 5000>, dims = array<i64: 0>}
      : (tensor<2xf32>) -> tensor<2x5000xf32>
  return %0 : tensor<2x5000xf32>
}

// CHECK-LABEL: func.func @fold_not_partly(
// CHECK:         "gradopt.maximum"
func.func @fold_not_partly(%x: !v) -> !v {
  %a = "gradopt.constant"() {value = dense<1.0> : !v} : () -> !v
  %0 = "gradopt.maximum"(%x, %a) : (!v, !v) -> !v
  return %0 : !v
}

// --- sums ----------------------------------------------------------------------------------------

// CHECK-LABEL: func.func @add_zero(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<3xf32>
// CHECK-NEXT:    return [[X]], [[X]], [[X]]
func.func @add_zero(%x: !v) -> (!v, !v, !v) {
  %z = "gradopt.constant"() {value = dense<0.0> : !v} : () -> !v
  %0 = "gradopt.add"(%x, %z) : (!v, !v) -> !v
  %1 = "gradopt.add"(%z, %x) : (!v, !v) -> !v
  %2 = "gradopt.sub"(%x, %z) : (!v, !v) -> !v
  return %0, %1, %2 : !v, !v, !v
}

// CHECK-LABEL: func.func @add_not_zero(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<3xf32>
// CHECK-DAG:     [[P:%[a-z0-9_]+]] = "gradopt.constant"() {value = dense<[0.0
// CHECK-DAG:     [[C:%[a-z0-9_]+]] = "gradopt.constant"() {value = dense<1.0
// CHECK-DAG:     [[A:%[a-z0-9]+]] = "gradopt.add"([[X]], [[C]])
// CHECK-DAG:     [[B:%[a-z0-9]+]] = "gradopt.sub"({{%[a-z0-9]+}}, [[X]])
// CHECK-DAG:     [[D:%[a-z0-9]+]] = "gradopt.add"([[X]], [[P]])
// CHECK:         return [[A]], [[B]], [[D]]
func.func @add_not_zero(%x: !v) -> (!v, !v, !v) {
  %z = "gradopt.constant"() {value = dense<0.0> : !v} : () -> !v
  %c = "gradopt.constant"() {value = dense<1.0> : !v} : () -> !v
  %p = "gradopt.constant"() {value = dense<[0.0, 0.0, 1.0]> : !v} : () -> !v
  %0 = "gradopt.add"(%x, %c) : (!v, !v) -> !v
  %1 = "gradopt.sub"(%z, %x) : (!v, !v) -> !v
  %2 = "gradopt.add"(%x, %p) : (!v, !v) -> !v
  return %0, %1, %2 : !v, !v, !v
}

// --- products ------------------------------------------------------------------------------------

// CHECK-LABEL: func.func @mul_one(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<3xf32>
// CHECK-NEXT:    [[N:%[a-z0-9]+]] = "gradopt.neg"([[X]])
// CHECK-NEXT:    return [[X]], [[X]], [[N]]
func.func @mul_one(%x: !v) -> (!v, !v, !v) {
  %c = "gradopt.constant"() {value = dense<1.0> : !v} : () -> !v
  %n = "gradopt.constant"() {value = dense<-1.0> : !v} : () -> !v
  %0 = "gradopt.mul"(%x, %c) : (!v, !v) -> !v
  %1 = "gradopt.mul"(%c, %x) : (!v, !v) -> !v
  %2 = "gradopt.mul"(%n, %x) : (!v, !v) -> !v
  return %0, %1, %2 : !v, !v, !v
}

// x * 0 is not 0 where x is infinite or NaN.
// CHECK-LABEL: func.func @mul_zero_stays(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<3xf32>
// CHECK:         [[Z:%[a-z0-9]+]] = "gradopt.constant"() {value = dense<0.0
// CHECK:         [[Y:%[a-z0-9]+]] = "gradopt.mul"([[X]], [[Z]])
// CHECK-NEXT:    return [[Y]]
func.func @mul_zero_stays(%x: !v) -> !v {
  %z = "gradopt.constant"() {value = dense<0.0> : !v} : () -> !v
  %0 = "gradopt.mul"(%x, %z) : (!v, !v) -> !v
  return %0 : !v
}

// The reciprocal of a power of two is exact.
// CHECK-LABEL: func.func @div_exact(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<3xf32>
// CHECK-DAG:     [[C:%[a-z0-9]+]] = "gradopt.constant"() {value = dense<2.5{{0*}}e-01>
// CHECK-DAG:     [[D:%[a-z0-9]+]] = "gradopt.constant"() {value = dense<-2.0{{0*}}e+00>
// CHECK-DAG:     [[Q:%[a-z0-9]+]] = "gradopt.mul"([[X]], [[C]])
// CHECK-DAG:     [[R:%[a-z0-9]+]] = "gradopt.mul"([[X]], [[D]])
// CHECK:         return [[X]], [[Q]], [[R]]
func.func @div_exact(%x: !v) -> (!v, !v, !v) {
  %c = "gradopt.constant"() {value = dense<1.0> : !v} : () -> !v
  %d = "gradopt.constant"() {value = dense<4.0> : !v} : () -> !v
  %e = "gradopt.constant"() {value = dense<-0.5> : !v} : () -> !v
  %0 = "gradopt.div"(%x, %c) : (!v, !v) -> !v
  %1 = "gradopt.div"(%x, %d) : (!v, !v) -> !v
  %2 = "gradopt.div"(%x, %e) : (!v, !v) -> !v
  return %0, %1, %2 : !v, !v, !v
}

// By other numbers, by 0, by infinity, by a power of two whose reciprocal may not be normal, and in
// 16 bits, where it may not be either.
// CHECK-LABEL: func.func @div_not_exact(
// CHECK-COUNT-5: "gradopt.div"
// CHECK:         return
func.func @div_not_exact(%x: !v, %y: !h) -> (!v, !v, !v, !v, !h) {
  %c = "gradopt.constant"() {value = dense<3.0> : !v} : () -> !v
  %z = "gradopt.constant"() {value = dense<0.0> : !v} : () -> !v
  %i = "gradopt.constant"() {value = dense<0x7F800000> : !v} : () -> !v
  %l = "gradopt.constant"() {value = dense<0x7F000000> : !v} : () -> !v
  %h = "gradopt.constant"() {value = dense<2.0> : !h} : () -> !h
  %0 = "gradopt.div"(%x, %c) : (!v, !v) -> !v
  %1 = "gradopt.div"(%x, %z) : (!v, !v) -> !v
  %2 = "gradopt.div"(%x, %i) : (!v, !v) -> !v
  %3 = "gradopt.div"(%x, %l) : (!v, !v) -> !v
  %4 = "gradopt.div"(%y, %h) : (!h, !h) -> !h
  return %0, %1, %2, %3, %4 : !v, !v, !v, !v, !h
}

// 0 * s = 0 whatever s is; 1 * s = s; ct * 1 = ct; elsewhere a finite number makes it a plain
// product.
// CHECK-LABEL: func.func @mul_no_nan(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<3xf32>
// CHECK-DAG:     [[Z:%[a-z0-9]+]] = "gradopt.constant"() {value = dense<0.0
// CHECK-DAG:     [[C:%[a-z0-9]+]] = "gradopt.constant"() {value = dense<3.0
// CHECK-DAG:     [[A:%[a-z0-9]+]] = "gradopt.mul"([[C]], [[X]])
// CHECK-DAG:     [[B:%[a-z0-9]+]] = "gradopt.mul"([[X]], [[C]])
// CHECK-DAG:     [[Y:%[a-z0-9]+]] = "gradopt.mul"([[X]], [[Z]])
// CHECK:         return [[Z]], [[X]], [[X]], [[A]], [[B]], [[Y]]
func.func @mul_no_nan(%x: !v) -> (!v, !v, !v, !v, !v, !v) {
  %z = "gradopt.constant"() {value = dense<0.0> : !v} : () -> !v
  %c = "gradopt.constant"() {value = dense<1.0> : !v} : () -> !v
  %d = "gradopt.constant"() {value = dense<3.0> : !v} : () -> !v
  %0 = "gradopt.mul_no_nan"(%z, %x) : (!v, !v) -> !v
  %1 = "gradopt.mul_no_nan"(%c, %x) : (!v, !v) -> !v
  %2 = "gradopt.mul_no_nan"(%x, %c) : (!v, !v) -> !v
  %3 = "gradopt.mul_no_nan"(%d, %x) : (!v, !v) -> !v
  %4 = "gradopt.mul_no_nan"(%x, %d) : (!v, !v) -> !v
  %5 = "gradopt.mul_no_nan"(%x, %z) : (!v, !v) -> !v
  return %0, %1, %2, %3, %4, %5 : !v, !v, !v, !v, !v, !v
}

// An infinite slope, and one that is not known, keep their guard.
// CHECK-LABEL: func.func @mul_no_nan_stays(
// CHECK-COUNT-2: "gradopt.mul_no_nan"
// CHECK:         return
func.func @mul_no_nan_stays(%x: !v, %y: !v) -> (!v, !v) {
  %i = "gradopt.constant"() {value = dense<0x7F800000> : !v} : () -> !v
  %0 = "gradopt.mul_no_nan"(%x, %i) : (!v, !v) -> !v
  %1 = "gradopt.mul_no_nan"(%x, %y) : (!v, !v) -> !v
  return %0, %1 : !v, !v
}

// --- negation, selection, conversion -------------------------------------------------------------

// CHECK-LABEL: func.func @double_negation(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<3xf32>
// CHECK-NEXT:    [[N:%[a-z0-9]+]] = "gradopt.neg"([[X]])
// CHECK-NEXT:    return [[X]], [[N]]
func.func @double_negation(%x: !v) -> (!v, !v) {
  %0 = "gradopt.neg"(%x) : (!v) -> !v
  %1 = "gradopt.neg"(%0) : (!v) -> !v
  %2 = "gradopt.neg"(%1) : (!v) -> !v
  return %1, %2 : !v, !v
}

// CHECK-LABEL: func.func @known_choice(
// CHECK-SAME:    [[C:%[a-z0-9]+]]: tensor<3xi1>, [[X:%[a-z0-9]+]]: tensor<3xf32>, [[Y:%[a-z0-9]+]]:
// CHECK-NEXT:    return [[X]], [[Y]], [[X]]
func.func @known_choice(%c: !b, %x: !v, %y: !v) -> (!v, !v, !v) {
  %t = "gradopt.constant"() {value = dense<true> : !b} : () -> !b
  %f = "gradopt.constant"() {value = dense<false> : !b} : () -> !b
  %0 = "gradopt.select"(%t, %x, %y) : (!b, !v, !v) -> !v
  %1 = "gradopt.select"(%f, %x, %y) : (!b, !v, !v) -> !v
  %2 = "gradopt.select"(%c, %x, %x) : (!b, !v, !v) -> !v
  return %0, %1, %2 : !v, !v, !v
}

// CHECK-LABEL: func.func @unknown_choice(
// CHECK-COUNT-2: "gradopt.select"
// CHECK:         return
func.func @unknown_choice(%c: !b, %x: !v, %y: !v) -> (!v, !v) {
  %t = "gradopt.constant"() {value = dense<[true, false, true]> : !b} : () -> !b
  %0 = "gradopt.select"(%c, %x, %y) : (!b, !v, !v) -> !v
  %1 = "gradopt.select"(%t, %x, %y) : (!b, !v, !v) -> !v
  return %0, %1 : !v, !v
}

// A conversion there and back may round: only one to the same type is nothing.
// CHECK-LABEL: func.func @convert(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<3xf32>
// CHECK-NEXT:    [[H:%[a-z0-9]+]] = "gradopt.convert"([[X]]) {dtype = f16}
// CHECK-NEXT:    [[Y:%[a-z0-9]+]] = "gradopt.convert"([[H]]) {dtype = f32}
// CHECK-NEXT:    return [[X]], [[Y]]
func.func @convert(%x: !v) -> (!v, !v) {
  %0 = "gradopt.convert"(%x) {dtype = f32} : (!v) -> !v
  %1 = "gradopt.convert"(%x) {dtype = f16} : (!v) -> !h
  %2 = "gradopt.convert"(%1) {dtype = f32} : (!h) -> !v
  return %0, %2 : !v, !v
}

// Nothing is left to differentiate in this module, so nothing has to be stopped; a barrier stays.
// CHECK-LABEL: func.func @stop(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<3xf32>
// CHECK-NEXT:    [[Y:%[a-z0-9]+]] = "gradopt.optimization_barrier"([[X]])
// CHECK-NEXT:    return [[X]], [[Y]]
func.func @stop(%x: !v) -> (!v, !v) {
  %0 = "gradopt.stop_gradient"(%x) : (!v) -> !v
  %1 = "gradopt.optimization_barrier"(%x) : (!v) -> !v
  return %0, %1 : !v, !v
}

// --- MLIR's own passes ---------------------------------------------------------------------------

// What is computed twice is computed once, and what nobody uses not at all.
// CHECK-LABEL: func.func @cleaned(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<3xf32>
// CHECK-NEXT:    [[E:%[a-z0-9]+]] = "gradopt.exp"([[X]])
// CHECK-NEXT:    return [[E]], [[E]]
func.func @cleaned(%x: !v) -> (!v, !v) {
  %0 = "gradopt.exp"(%x) : (!v) -> !v
  %1 = "gradopt.exp"(%x) : (!v) -> !v
  %2 = "gradopt.sin"(%x) : (!v) -> !v
  return %0, %1 : !v, !v
}

// -----

// A stop has a meaning as long as a derivative is still to be written out.

!v = tensor<3xf32>
!dv = (!v, !v) -> (!v, !v)

// CHECK-LABEL: func.func private @stop_stays(
// CHECK:         "gradopt.stop_gradient"
func.func private @stop_stays(%x: !v) -> !v {
  %0 = "gradopt.stop_gradient"(%x) : (!v) -> !v
  %1 = "gradopt.mul"(%0, %x) : (!v, !v) -> !v
  return %1 : !v
}

// CHECK-LABEL: func.func @asks(
// CHECK:         "gradopt.vjp"
func.func @asks(%x: !v) -> !v {
  %f = "gradopt.vjp"() {callee = @stop_stays, wrt = array<i64: 0>} : () -> !dv
  %r:2 = call_indirect %f(%x, %x) : !dv
  return %r#1 : !v
}
