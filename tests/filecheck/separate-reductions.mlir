// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// RUN: gradopt-opt %s --convert-gradopt-to-linalg --gradopt-separate-reductions | filecheck %s

// A sum that other positions read is kept apart; what reads it in place comes along.
// CHECK-LABEL: func.func public @column_sums
// CHECK: iterator_types = ["parallel", "reduction"]
// CHECK: math.exp
// CHECK: "iree_tensor_ext.compute_barrier.start"
// CHECK-SAME: tensor<50xf32>
// CHECK: linalg.generic
// CHECK-SAME: iterator_types = ["parallel", "parallel"]
func.func public @column_sums(%x: tensor<100x50xf32>) -> tensor<100x50xf32> {
  %0 = "gradopt.sum"(%x) {axes = array<i64: 0>} : (tensor<100x50xf32>) -> tensor<50xf32>
  %1 = "gradopt.exp"(%0) : (tensor<50xf32>) -> tensor<50xf32>
  %2 = "gradopt.broadcast"(%1) {dims = array<i64: 1>, shape = array<i64: 100, 50>} : (tensor<50xf32>) -> tensor<100x50xf32>
  %3 = "gradopt.mul"(%x, %2) : (tensor<100x50xf32>, tensor<100x50xf32>) -> tensor<100x50xf32>
  return %3 : tensor<100x50xf32>
}

// Nothing is read elsewhere.
// CHECK-LABEL: func.func public @in_place
// CHECK-NOT: compute_barrier
// CHECK: return
func.func public @in_place(%x: tensor<100x50xf32>) -> tensor<50xf32> {
  %0 = "gradopt.sum"(%x) {axes = array<i64: 0>} : (tensor<100x50xf32>) -> tensor<50xf32>
  %1 = "gradopt.exp"(%0) : (tensor<50xf32>) -> tensor<50xf32>
  return %1 : tensor<50xf32>
}

// Widened elements that several ops read are kept: IREE would widen them anew beside the reduction.
// CHECK-LABEL: func.func public @widened
// CHECK: [[WIDE:%[0-9]+]] = linalg.generic
// CHECK: arith.extf
// CHECK: [[KEPT:%[0-9]+]] = "iree_tensor_ext.compute_barrier.start"([[WIDE]])
// CHECK: linalg.generic
// CHECK-SAME: iterator_types = ["parallel", "reduction"]
// CHECK-SAME: ins([[KEPT]]
// CHECK: return
func.func public @widened(%x: tensor<30x4xf16>) -> tensor<30x4xf32> {
  %0 = "gradopt.convert"(%x) {dtype = f32} : (tensor<30x4xf16>) -> tensor<30x4xf32>
  %1 = "gradopt.sum"(%0) {axes = array<i64: 0>} : (tensor<30x4xf32>) -> tensor<4xf32>
  %2 = "gradopt.broadcast"(%1) {dims = array<i64: 1>, shape = array<i64: 30, 4>} : (tensor<4xf32>) -> tensor<30x4xf32>
  %3 = "gradopt.sub"(%0, %2) : (tensor<30x4xf32>, tensor<30x4xf32>) -> tensor<30x4xf32>
  return %3 : tensor<30x4xf32>
}
