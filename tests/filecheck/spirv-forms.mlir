// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// RUN: gradopt-opt %s --convert-gradopt-to-linalg --gradopt-spirv-forms | filecheck %s

// CHECK-LABEL: func.func public @rows
// CHECK-NOT: iree_linalg_ext.gather
// CHECK: tensor.extract
func.func public @rows(%x: tensor<5x3xf32>, %i: tensor<4xi32>) -> tensor<4x3xf32> {
  %0 = "gradopt.take"(%x, %i) {axis = 0 : i64} : (tensor<5x3xf32>, tensor<4xi32>) -> tensor<4x3xf32>
  return %0 : tensor<4x3xf32>
}
