// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// RUN: gradopt-opt %s --convert-gradopt-to-linalg --gradopt-multi-output-fusion | filecheck %s

// Two values that several ops read, made of the same one, are two results of one generic. IREE fuses
// nothing into it, and it into nothing.
// CHECK-LABEL: func.func public @siblings
// CHECK: linalg.matmul
// CHECK: [[BOTH:%[0-9]+]]:2 = linalg.generic
// CHECK: math.exp
// CHECK: linalg.yield %{{.*}}, %{{.*}} : f32, f32
// CHECK: "iree_tensor_ext.compute_barrier.start"([[BOTH]]#0)
// CHECK: "iree_tensor_ext.compute_barrier.start"([[BOTH]]#1)
// CHECK-NOT: math.exp
// CHECK: return
func.func public @siblings(%x: tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>) {
  %0 = "gradopt.dot_general"(%x, %x) {lhs_batch = array<i64>, lhs_contract = array<i64: 1>, rhs_batch = array<i64>, rhs_contract = array<i64: 0>} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = "gradopt.cumsum"(%0) {axis = 0 : i64, reverse = false} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %2 = "gradopt.exp"(%1) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %3 = "gradopt.mul"(%1, %2) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %4 = "gradopt.dot_general"(%2, %3) {lhs_batch = array<i64>, lhs_contract = array<i64: 1>, rhs_batch = array<i64>, rhs_contract = array<i64: 0>} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %5 = "gradopt.dot_general"(%3, %2) {lhs_batch = array<i64>, lhs_contract = array<i64: 0>, rhs_batch = array<i64>, rhs_contract = array<i64: 1>} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %4, %5 : tensor<8x8xf32>, tensor<8x8xf32>
}
