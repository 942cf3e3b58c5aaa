// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// RUN: gradopt-opt %s --split-input-file --verify-diagnostics

// What the verifier says of contractions, convolutions and neural network ops.

// Contractions.

func.func @f(%a: tensor<2x3xf32>, %b: tensor<4x5xf32>) {
  // expected-error@+1 {{'gradopt.dot_general' op expected contracting dimensions to match, got 3 and 4 (tensor<2x3xf32> and tensor<4x5xf32>); transpose or reshape an operand}}
  %0 = "gradopt.dot_general"(%a, %b) {lhs_contract = array<i64: 1>, rhs_contract = array<i64: 0>}
      : (tensor<2x3xf32>, tensor<4x5xf32>) -> tensor<2x5xf32>
  return
}

// -----

func.func @f(%a: tensor<2x3x4xf32>, %b: tensor<5x4x6xf32>) {
  // expected-error@+1 {{'gradopt.dot_general' op expected batch dimensions to match, got 2 and 5 (tensor<2x3x4xf32> and tensor<5x4x6xf32>); transpose or reshape an operand}}
  %0 = "gradopt.dot_general"(%a, %b) {lhs_contract = array<i64: 2>, rhs_contract = array<i64: 1>,
      lhs_batch = array<i64: 0>, rhs_batch = array<i64: 0>}
      : (tensor<2x3x4xf32>, tensor<5x4x6xf32>) -> tensor<2x3x6xf32>
  return
}

// -----

func.func @f(%a: tensor<2x3xf32>, %b: tensor<3x5xf32>) {
  // expected-error@+1 {{'gradopt.dot_general' op expected contracting dimensions to match, got 3 and none (tensor<2x3xf32> and tensor<3x5xf32>); transpose or reshape an operand}}
  %0 = "gradopt.dot_general"(%a, %b) {lhs_contract = array<i64: 1>, rhs_contract = array<i64>}
      : (tensor<2x3xf32>, tensor<3x5xf32>) -> tensor<2x5xf32>
  return
}

// -----

func.func @f(%a: tensor<2x3xf32>, %b: tensor<3x5xf32>) {
  // expected-error@+1 {{'gradopt.dot_general' op expected distinct lhs axes in [0, 2), got [1, 1]}}
  %0 = "gradopt.dot_general"(%a, %b) {lhs_contract = array<i64: 1, 1>,
      rhs_contract = array<i64: 0, 0>}
      : (tensor<2x3xf32>, tensor<3x5xf32>) -> tensor<2x5xf32>
  return
}

// -----

func.func @f(%a: tensor<2x3xf32>, %b: tensor<3x5xf64>) {
  // expected-error@+1 {{'gradopt.dot_general' op expected numeric operands of one element type, got tensor<2x3xf32> and tensor<3x5xf64>; convert one of them}}
  %0 = "gradopt.dot_general"(%a, %b) {lhs_contract = array<i64: 1>, rhs_contract = array<i64: 0>}
      : (tensor<2x3xf32>, tensor<3x5xf64>) -> tensor<2x5xf32>
  return
}

// -----

// Convolutions.

func.func @f(%a: tensor<2x3xf32>) {
  // expected-error@+1 {{'gradopt.conv' op expected operands of one rank, 3 to 5, got tensor<2x3xf32> and tensor<2x3xf32>}}
  %0 = "gradopt.conv"(%a, %a) {strides = array<i64>,
      low = array<i64>, high = array<i64>, dilation = array<i64>}
      : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
  return
}

// -----

func.func @f(%a: tensor<1x5x5x2xf32>, %b: tensor<3x3x2x4xf32>) {
  // expected-error@+1 {{'gradopt.conv' op expected 2 values in strides, got [1]}}
  %0 = "gradopt.conv"(%a, %b) {strides = array<i64: 1>,
      low = array<i64: 0, 0>, high = array<i64: 0, 0>, dilation = array<i64: 1, 1>}
      : (tensor<1x5x5x2xf32>, tensor<3x3x2x4xf32>) -> tensor<1x3x3x4xf32>
  return
}

// -----

func.func @f(%a: tensor<1x5x5x2xf32>, %b: tensor<3x3x2x4xf32>) {
  // expected-error@+1 {{'gradopt.conv' op expected strides, dilation and groups of at least 1, got}}
  %0 = "gradopt.conv"(%a, %b) {strides = array<i64: 0, 1>,
      low = array<i64: 0, 0>, high = array<i64: 0, 0>, dilation = array<i64: 1, 1>}
      : (tensor<1x5x5x2xf32>, tensor<3x3x2x4xf32>) -> tensor<1x3x3x4xf32>
  return
}

// -----

func.func @f(%a: tensor<1x5x5x2xf32>, %b: tensor<3x3x3x4xf32>) {
  // expected-error@+1 {{'gradopt.conv' op expected 2 input channels to be 1 groups of the kernel's, got tensor<1x5x5x2xf32> and tensor<3x3x3x4xf32>}}
  %0 = "gradopt.conv"(%a, %b) {strides = array<i64: 1, 1>,
      low = array<i64: 0, 0>, high = array<i64: 0, 0>, dilation = array<i64: 1, 1>}
      : (tensor<1x5x5x2xf32>, tensor<3x3x3x4xf32>) -> tensor<1x3x3x4xf32>
  return
}

// -----

func.func @f(%a: tensor<1x2x5x2xf32>, %b: tensor<3x3x2x4xf32>) {
  // expected-error@+1 {{'gradopt.conv' op expected a window of 1 to 2 elements, got 3; pad the input}}
  %0 = "gradopt.conv"(%a, %b) {strides = array<i64: 1, 1>,
      low = array<i64: 0, 0>, high = array<i64: 0, 0>, dilation = array<i64: 1, 1>}
      : (tensor<1x2x5x2xf32>, tensor<3x3x2x4xf32>) -> tensor<1x3x3x4xf32>
  return
}

// -----

func.func @f(%a: tensor<1x5x5x2xf32>, %b: tensor<3x3x2x4xf32>) {
  // expected-error@+1 {{'gradopt.conv' op expected result type tensor<1x3x3x4xf32>, got tensor<1x5x5x4xf32>}}
  %0 = "gradopt.conv"(%a, %b) {strides = array<i64: 1, 1>,
      low = array<i64: 0, 0>, high = array<i64: 0, 0>, dilation = array<i64: 1, 1>}
      : (tensor<1x5x5x2xf32>, tensor<3x3x2x4xf32>) -> tensor<1x5x5x4xf32>
  return
}

// -----

func.func @f(%a: tensor<1x5x5x4xf32>, %b: tensor<3x3x2x4xf32>) {
  // expected-error@+1 {{'gradopt.conv_input_gradient' op expected a gradient with spatial extents [3, 3] and 4 channels, got tensor<1x5x5x4xf32>}}
  %0 = "gradopt.conv_input_gradient"(%a, %b) {extents = array<i64: 5, 5>, strides = array<i64: 1, 1>,
      low = array<i64: 0, 0>, high = array<i64: 0, 0>, dilation = array<i64: 1, 1>}
      : (tensor<1x5x5x4xf32>, tensor<3x3x2x4xf32>) -> tensor<1x5x5x2xf32>
  return
}

// -----

func.func @f(%a: tensor<1x5x5x2xf32>, %b: tensor<2x3x3x4xf32>) {
  // expected-error@+1 {{'gradopt.conv_weight_gradient' op expected a gradient of batch 1 and spatial extents [3, 3], got tensor<2x3x3x4xf32>}}
  %0 = "gradopt.conv_weight_gradient"(%a, %b) {window = array<i64: 3, 3>, strides = array<i64: 1, 1>,
      low = array<i64: 0, 0>, high = array<i64: 0, 0>, dilation = array<i64: 1, 1>}
      : (tensor<1x5x5x2xf32>, tensor<2x3x3x4xf32>) -> tensor<3x3x2x4xf32>
  return
}

// -----

// Neural networks.

func.func @f(%a: tensor<8x10xf32>, %b: tensor<7xi32>) {
  // expected-error@+1 {{'gradopt.cross_entropy' op expected integer labels of shape (8,), got tensor<7xi32>; one label a row of logits}}
  %0:2 = "gradopt.cross_entropy"(%a, %b)
      : (tensor<8x10xf32>, tensor<7xi32>) -> (tensor<8xf32>, tensor<8xf32>)
  return
}

// -----

func.func @f(%a: tensor<8x4xf32>) {
  // expected-error@+1 {{'gradopt.normalize' op expected increasing axes of a tensor of rank 2, got [1, 0]}}
  %0:3 = "gradopt.normalize"(%a) {axes = array<i64: 1, 0>}
      : (tensor<8x4xf32>) -> (tensor<8x4xf32>, tensor<f32>, tensor<f32>)
  return
}
