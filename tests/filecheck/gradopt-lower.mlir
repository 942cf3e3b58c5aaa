// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// RUN: gradopt-opt %s --split-input-file --gradopt-lower | filecheck %s

// The whole way, from a gradient asked for in text to what IREE compiles: a step of gradient
// descent on w for the loss sum (x w - t)^2.

!x = tensor<8x4xf32>
!w = tensor<4x2xf32>
!y = tensor<8x2xf32>
!s = tensor<f32>

func.func private @loss(%w: !w {gradopt.name = "w"}, %x: !x {gradopt.name = "x"},
                        %t: !y {gradopt.name = "t"}) -> !s {
  %0 = "gradopt.dot_general"(%x, %w) {lhs_contract = array<i64: 1>, rhs_contract = array<i64: 0>}
      : (!x, !w) -> !y
  %1 = "gradopt.sub"(%0, %t) : (!y, !y) -> !y
  %2 = "gradopt.square"(%1) : (!y) -> !y
  %3 = "gradopt.sum"(%2) {axes = array<i64: 0, 1>} : (!y) -> !s
  return %3 : !s
}

func.func @step(%w: !w {gradopt.donated}, %x: !x, %t: !y) -> (!s, !w) {
  %one = "gradopt.constant"() {value = dense<1.0> : !s} : () -> !s
  %f = "gradopt.vjp"() {callee = @loss, wrt = array<i64: 0>} : () -> ((!w, !x, !y, !s) -> (!s, !w))
  %r:2 = call_indirect %f(%w, %x, %t, %one) : (!w, !x, !y, !s) -> (!s, !w)
  %rate = "gradopt.constant"() {value = dense<0.5> : !w} : () -> !w
  %0 = "gradopt.mul"(%rate, %r#1) : (!w, !w) -> !w
  %1 = "gradopt.sub"(%w, %0) : (!w, !w) -> !w
  return %r#0, %1 : !s, !w
}

// CHECK-NOT:   @loss
// CHECK-DAG:   [[ROWS:#map[0-9]*]] = affine_map<(d0, d1, d2) -> (d2, d0)>
// CHECK-DAG:   [[COLUMNS:#map[0-9]*]] = affine_map<(d0, d1, d2) -> (d2, d1)>
// CHECK-LABEL: func.func @step(
// CHECK-SAME:    [[W:%[a-z0-9]+]]: tensor<4x2xf32> {gradopt.donated},
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<8x4xf32>, [[T:%[a-z0-9]+]]: tensor<8x2xf32>,
// CHECK-SAME:    {{%[a-z0-9]+}}: tensor<4x2xf32> {gradopt.storage = 0 : i64, iree.abi.output = 1 : index})
// CHECK-NOT:     gradopt
// CHECK-NOT:     call
// CHECK-DAG:     [[HALF:%[a-z0-9_]+]] = arith.constant 5.0{{0*}}e-01 : f32
// CHECK-DAG:     [[TWO:%[a-z0-9_]+]] = arith.constant 2.0{{0*}}e+00 : f32
// CHECK:         [[P:%[0-9]+]] = linalg.matmul {iree.opt.data_tiling} ins([[X]], [[W]] :
// CHECK:         [[LOSS:%[0-9]+]] = linalg.generic {{.*}}"reduction"]} {{.*}} outs({{.*}} : tensor<f32>)
// CHECK:         [[G:%[0-9]+]] = linalg.generic
// CHECK:           arith.mulf {{.*}}[[TWO]]
// CHECK:         [[D:%[0-9]+]] = linalg.matmul indexing_maps = {{.}}[[ROWS]], [[COLUMNS]], #map{{[0-9]*}}]
// CHECK-SAME:      ins([[X]], [[G]] :
// CHECK:         [[NEW:%[0-9]+]] = linalg.generic {{.*}} ins([[W]], [[D]] :
// CHECK:           arith.mulf {{.*}}[[HALF]]
// CHECK-NEXT:      arith.subf
// CHECK:         return [[LOSS]], [[NEW]]

// -----

// Two inputs with the same gradient get two arrays (B52).

!v = tensor<3xf32>

func.func private @f(%x: !v, %y: !v) -> !v {
  %0 = "gradopt.add"(%x, %y) : (!v, !v) -> !v
  return %0 : !v
}

func.func @same_gradient(%x: !v, %y: !v, %ct: !v) -> (!v, !v) {
  %f = "gradopt.vjp"() {callee = @f, wrt = array<i64: 0, 1>} : () -> ((!v, !v, !v) -> (!v, !v, !v))
  %r:3 = call_indirect %f(%x, %y, %ct) : (!v, !v, !v) -> (!v, !v, !v)
  return %r#1, %r#2 : !v, !v
}

// CHECK-LABEL: func.func @same_gradient(
// CHECK-SAME:    [[CT:%[a-z0-9]+]]: tensor<3xf32>) ->
// CHECK:         [[A:%[0-9]+]] = linalg.generic {{.*}} ins([[CT]],
// CHECK:         [[B:%[0-9]+]] = linalg.generic {{.*}} ins([[CT]],
// CHECK:         return [[A]], [[B]]
