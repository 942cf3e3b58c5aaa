// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// RUN: gradopt-opt %s --gradopt-partition --split-input-file | filecheck %s

// z = x w: both are kept as they are, nothing else, C050, C053.
// CHECK-LABEL: func.func @product(
// CHECK-LABEL: func.func @product_forward(
// CHECK-NEXT: %[[Z:.*]] = "gradopt.mul"(%arg0, %arg1)
// CHECK-NEXT: return %[[Z]] :
// CHECK-LABEL: func.func @product_backward(
// CHECK-SAME: {gradopt.name = "x"}, %arg1: tensor<4xf32> {gradopt.name = "w"}, %arg2
// CHECK-NEXT: %[[X:.*]] = "gradopt.mul"(%arg2, %arg1)
// CHECK-NEXT: %[[W:.*]] = "gradopt.mul"(%arg2, %arg0)
// CHECK-NEXT: return %[[X]], %[[W]]
func.func @product(%x: tensor<4xf32> {gradopt.name = "x"}, %w: tensor<4xf32> {gradopt.name = "w"},
                   %ct: tensor<4xf32> {gradopt.cotangent, gradopt.name = "ct"})
    -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) attributes {gradopt.primals = 1 : i64} {
  %z = "gradopt.mul"(%x, %w) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %dx = "gradopt.mul"(%ct, %w) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %dw = "gradopt.mul"(%ct, %x) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %z, %dx, %dw : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}

// -----

// A quick op is computed twice, the exponential behind it is not.
// CHECK-LABEL: func.func @quick_forward(
// CHECK: %[[E:.*]] = "gradopt.exp"
// CHECK: %[[Y:.*]] = "gradopt.sum"
// CHECK: return %[[Y]], %[[E]]
// CHECK-LABEL: func.func @quick_backward(
// CHECK-NOT: gradopt.exp
// CHECK: %[[N:.*]] = "gradopt.neg"(%arg0)
// CHECK: "gradopt.mul"(%{{.*}}, %[[N]])
func.func @quick(%x: tensor<4xf32>, %ct: tensor<f32> {gradopt.cotangent})
    -> (tensor<f32>, tensor<4xf32>) attributes {gradopt.primals = 1 : i64} {
  %e = "gradopt.exp"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %n = "gradopt.neg"(%e) : (tensor<4xf32>) -> tensor<4xf32>
  %y = "gradopt.sum"(%n) {axes = array<i64: 0>} : (tensor<4xf32>) -> tensor<f32>
  %b = "gradopt.broadcast"(%ct) {dims = array<i64>, shape = array<i64: 4>} : (tensor<f32>) -> tensor<4xf32>
  %g = "gradopt.mul"(%b, %n) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %h = "gradopt.mul"(%g, %e) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %y, %h : tensor<f32>, tensor<4xf32>
}
