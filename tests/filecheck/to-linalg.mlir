// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// RUN: gradopt-opt %s --split-input-file --convert-gradopt-to-linalg | filecheck %s

// What is computed inside generics rather than stored: constants, broadcasts, ramps, masks, chains.
// to-linalg-families.mlir shows the other families of ops.

// A constant is a number in the body.

!v = tensor<3xf32>

func.func @constants(%x: !v) -> !v {
  %c = "gradopt.constant"() {value = dense<2.0> : !v} : () -> !v
  %0 = "gradopt.mul"(%x, %c) : (!v, !v) -> !v
  return %0 : !v
}

// CHECK-LABEL: func.func @constants(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<3xf32>
// CHECK:         [[C:%[a-z0-9_]+]] = arith.constant 2.0{{[0e+]*}} : f32
// CHECK:         [[Y:%[0-9]+]] = linalg.generic
// CHECK-SAME:      iterator_types = ["parallel"]} ins([[X]] : tensor<3xf32>)
// CHECK-NEXT:    ^bb0([[A:%[a-z0-9_]+]]: f32, {{%[a-z0-9_]+}}: f32):
// CHECK-NEXT:      [[P:%[0-9]+]] = arith.mulf [[A]], [[C]] : f32
// CHECK-NEXT:      linalg.yield [[P]] : f32
// CHECK:         return [[Y]]

// -----

// A broadcast is an indexing map.

!v = tensor<3xf32>
!m = tensor<2x3xf32>

func.func @broadcast(%x: !m, %b: !v) -> !m {
  %0 = "gradopt.broadcast"(%b) {shape = array<i64: 2, 3>, dims = array<i64: 1>} : (!v) -> !m
  %1 = "gradopt.add"(%x, %0) : (!m, !m) -> !m
  return %1 : !m
}

// CHECK-DAG:   [[FULL:#map[0-9]*]] = affine_map<(d0, d1) -> (d0, d1)>
// CHECK-DAG:   [[ROW:#map[0-9]*]] = affine_map<(d0, d1) -> (d1)>
// CHECK-LABEL: func.func @broadcast(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<2x3xf32>, [[B:%[a-z0-9]+]]: tensor<3xf32>
// CHECK:         linalg.generic {indexing_maps = {{.}}[[FULL]], [[ROW]], [[FULL]]]
// CHECK-SAME:      ins([[X]], [[B]] : tensor<2x3xf32>, tensor<3xf32>)
// CHECK-NOT:     linalg.generic
// CHECK:         return

// -----

// An extent of 1 that is repeated is dropped first.

!m = tensor<2x3xf32>

func.func @broadcast_of_one(%x: !m, %b: tensor<2x1xf32>) -> !m {
  %0 = "gradopt.broadcast"(%b) {shape = array<i64: 2, 3>, dims = array<i64: 0, 1>}
      : (tensor<2x1xf32>) -> !m
  %1 = "gradopt.mul"(%x, %0) : (!m, !m) -> !m
  return %1 : !m
}

// CHECK:       [[COLUMN:#map[0-9]*]] = affine_map<(d0, d1) -> (d0)>
// CHECK-LABEL: func.func @broadcast_of_one(
// CHECK-SAME:    [[B:%[a-z0-9]+]]: tensor<2x1xf32>
// CHECK:         [[C:%[a-z0-9_]+]] = tensor.collapse_shape [[B]] {{.*}} into tensor<2xf32>
// CHECK:         linalg.generic {indexing_maps = [#map{{[0-9]*}}, [[COLUMN]], #map
// CHECK-SAME:      , [[C]] : tensor<2x3xf32>, tensor<2xf32>)

// -----

// A ramp is the index of a loop, broadcast or not.

!i = tensor<2x3xi32>

func.func @ramp(%x: !i) -> !i {
  %0 = "gradopt.iota"() {shape = array<i64: 3>, axis = 0 : i64, dtype = i32} : () -> tensor<3xi32>
  %1 = "gradopt.broadcast"(%0) {shape = array<i64: 2, 3>, dims = array<i64: 1>}
      : (tensor<3xi32>) -> !i
  %2 = "gradopt.iota"() {shape = array<i64: 2, 3>, axis = 0 : i64, dtype = i32} : () -> !i
  %3 = "gradopt.add"(%x, %1) : (!i, !i) -> !i
  %4 = "gradopt.mul"(%3, %2) : (!i, !i) -> !i
  return %4 : !i
}

// CHECK-LABEL: func.func @ramp(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<2x3xi32>
// CHECK:         linalg.generic {{.*}} ins([[X]] : tensor<2x3xi32>)
// CHECK-DAG:       linalg.index 1 : index
// CHECK-DAG:       linalg.index 0 : index
// CHECK:           arith.muli
// CHECK-NEXT:      linalg.yield
// CHECK-NOT:     linalg.generic
// CHECK:         return

// -----

// A mask is computed inside each of its users, and never stored.

!m = tensor<2x3xf32>
!b = tensor<2x3xi1>

func.func @mask(%x: !m, %y: !m, %z: !m) -> (!m, tensor<2xf32>) {
  %0 = "gradopt.compare"(%x, %y) {direction = "gt"} : (!m, !m) -> !b
  %1 = "gradopt.select"(%0, %x, %z) : (!b, !m, !m) -> !m
  %2 = "gradopt.select"(%0, %z, %y) : (!b, !m, !m) -> !m
  %3 = "gradopt.sum"(%2) {axes = array<i64: 1>} : (!m) -> tensor<2xf32>
  return %1, %3 : !m, tensor<2xf32>
}

// CHECK-LABEL: func.func @mask(
// CHECK-NOT:     xi1>
// CHECK:         linalg.generic
// CHECK:           [[M:%[0-9]+]] = arith.cmpf ogt
// CHECK-NEXT:      arith.select [[M]]
// CHECK-NOT:     xi1>
// CHECK:         linalg.generic
// CHECK:           [[N:%[0-9]+]] = arith.cmpf ogt
// CHECK-NEXT:      arith.select [[N]]
// CHECK-NOT:     xi1>
// CHECK:         return

// -----

// A chain is one generic, in which 16-bit floats are wide and rounded after each op.

!h = tensor<3xf16>

func.func @chain(%x: !h, %y: !h) -> !h {
  %0 = "gradopt.exp"(%x) : (!h) -> !h
  %1 = "gradopt.mul"(%0, %y) : (!h, !h) -> !h
  return %1 : !h
}

// CHECK-LABEL: func.func @chain(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<3xf16>, [[Y:%[a-z0-9]+]]: tensor<3xf16>
// CHECK:         linalg.generic {{.*}} ins([[X]], [[Y]] : tensor<3xf16>, tensor<3xf16>)
// CHECK-NEXT:    ^bb0([[A:%[a-z0-9_]+]]: f16, [[B:%[a-z0-9_]+]]: f16,
// CHECK:           [[W:%[0-9]+]] = arith.extf [[A]] : f16 to f32
// CHECK:           [[E:%[0-9]+]] = math.exp [[W]] : f32
// CHECK:           arith.truncf [[E]] : f32 to f16
// CHECK:           [[P:%[0-9]+]] = math.fma {{.*}} : f32
// CHECK-NEXT:      [[R:%[0-9]+]] = arith.truncf [[P]] : f32 to f16
// CHECK-NEXT:      linalg.yield [[R]] : f16
// CHECK-NOT:     linalg.generic
// CHECK:         return

// -----

// Where something else uses them, constants, ramps and broadcasts are tensors.

!v = tensor<3xf32>
!m = tensor<2x3xf32>

func.func @stored(%x: !v) -> (!v, tensor<4xi32>, !m) {
  %0 = "gradopt.constant"() {value = dense<1.0> : !v} : () -> !v
  %1 = "gradopt.iota"() {shape = array<i64: 4>, axis = 0 : i64, dtype = i32} : () -> tensor<4xi32>
  %2 = "gradopt.broadcast"(%x) {shape = array<i64: 2, 3>, dims = array<i64: 1>} : (!v) -> !m
  return %0, %1, %2 : !v, tensor<4xi32>, !m
}

// CHECK-LABEL: func.func @stored(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<3xf32>
// CHECK-DAG:     [[C:%[a-z0-9_]+]] = arith.constant dense<1.0{{.*}}> : tensor<3xf32>
// CHECK:         [[I:%[0-9]+]] = linalg.generic {{.*}} outs({{%[0-9]+}} : tensor<4xi32>)
// CHECK:           linalg.index 0
// CHECK:         [[B:%[0-9]+]] = linalg.generic {{.*}} ins([[X]] : tensor<3xf32>)
// CHECK:         return [[C]], [[I]], [[B]]

// -----

// What is behind a barrier is computed apart.

!v = tensor<3xf32>

func.func @barrier(%x: !v) -> !v {
  %0 = "gradopt.exp"(%x) : (!v) -> !v
  %1 = "gradopt.optimization_barrier"(%0) : (!v) -> !v
  %2 = "gradopt.neg"(%1) : (!v) -> !v
  return %2 : !v
}

// CHECK-LABEL: func.func @barrier(
// CHECK:         [[E:%[0-9]+]] = linalg.generic
// CHECK:           math.exp
// CHECK:         [[B:%[0-9]+]] = "util.optimization_barrier"([[E]])
// CHECK:         linalg.generic {{.*}} ins([[B]] :

// -----

// An extent that is known only at run time is read from an argument.

!d = tensor<?x3xf32>

func.func @unknown_extent(%x: !d, %b: tensor<3xf32>) -> !d {
  %0 = "gradopt.neg"(%x) : (!d) -> !d
  %1 = "gradopt.broadcast"(%b, %0) {
      shape = array<i64: -9223372036854775808, 3>, dims = array<i64: 1>}
      : (tensor<3xf32>, !d) -> !d
  %2 = "gradopt.mul"(%0, %1) : (!d, !d) -> !d
  return %2 : !d
}

// CHECK-LABEL: func.func @unknown_extent(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<?x3xf32>, [[B:%[a-z0-9]+]]: tensor<3xf32>
// CHECK:         [[N:%[a-z0-9_]+]] = tensor.dim [[X]],
// CHECK:         [[O:%[0-9]+]] = tensor.empty([[N]]) : tensor<?x3xf32>
// CHECK:         linalg.generic {{.*}} outs([[O]] : tensor<?x3xf32>)

// -----

// Unsigned types become signless; the ops know that they are.

!u = tensor<3xui8>

func.func @unsigned(%x: !u, %y: !u) -> (!u, tensor<3xf32>) {
  %c = "gradopt.constant"() {value = dense<[200, 1, 2]> : !u} : () -> !u
  %0 = "gradopt.maximum"(%x, %y) : (!u, !u) -> !u
  %1 = "gradopt.minimum"(%0, %c) : (!u, !u) -> !u
  %2 = "gradopt.convert"(%x) {dtype = f32} : (!u) -> tensor<3xf32>
  return %1, %2 : !u, tensor<3xf32>
}

// CHECK-LABEL: func.func @unsigned(
// CHECK-SAME:    tensor<3xi8>, {{.*}}tensor<3xi8>) -> (tensor<3xi8>, tensor<3xf32>)
// CHECK-NOT:     ui8
// CHECK:         arith.constant dense<[-56, 1, 2]> : tensor<3xi8>
// CHECK:         arith.maxui
// CHECK:         arith.minui
// CHECK:         arith.uitofp
// CHECK-NOT:     ui8
// CHECK:         return
