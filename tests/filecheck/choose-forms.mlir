// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// RUN: gradopt-opt %s --gradopt-choose-forms | filecheck %s
// RUN: gradopt-opt %s --gradopt-choose-forms=forms=conv=columns+sum=split-256+dot_general=generic | filecheck %s --check-prefix=ASKED

// Plain forms are not written.
// CHECK-LABEL: func.func @plain
// CHECK-NOT: gradopt.form
// ASKED-LABEL: func.func @plain
// ASKED: "gradopt.dot_general"(%arg0, %arg1) {gradopt.form = "generic",
// ASKED: "gradopt.conv"(%arg2, %arg3) {dilation = array<i64: 1, 1>, gradopt.form = "columns",
func.func @plain(%a: tensor<4x5xf32>, %b: tensor<5x6xf32>, %x: tensor<2x8x8x3xf32>, %w: tensor<3x3x3x4xf32>)
    -> (tensor<4x6xf32>, tensor<2x6x6x4xf32>) {
  %c = "gradopt.dot_general"(%a, %b) {lhs_contract = array<i64: 1>, rhs_contract = array<i64: 0>} : (tensor<4x5xf32>, tensor<5x6xf32>) -> tensor<4x6xf32>
  %y = "gradopt.conv"(%x, %w) {strides = array<i64: 1, 1>, low = array<i64: 0, 0>, high = array<i64: 0, 0>, dilation = array<i64: 1, 1>} : (tensor<2x8x8x3xf32>, tensor<3x3x3x4xf32>) -> tensor<2x6x6x4xf32>
  return %c, %y : tensor<4x6xf32>, tensor<2x6x6x4xf32>
}

// Columns of a tall matrix are summed in parts; the rule is overridden by the option, and that by
// an attribute. What the option says of a kind is passed over where it is not right for an op.
// CHECK-LABEL: func.func @sums
// CHECK: gradopt.form = "split-{{.*}}tensor<16384x8xf32>
// CHECK: gradopt.form = "split-16"{{.*}}tensor<8192x4xf32>
// CHECK-NOT: gradopt.form
// ASKED-LABEL: func.func @sums
// ASKED: gradopt.form = "split-256"{{.*}}tensor<16384x8xf32>
// ASKED: gradopt.form = "split-16"{{.*}}tensor<8192x4xf32>
// ASKED-NOT: gradopt.form
func.func @sums(%x: tensor<16384x8xf32>, %y: tensor<8192x4xf32>) -> (tensor<8xf32>, tensor<4xf32>, tensor<8192xf32>) {
  %s = "gradopt.sum"(%x) {axes = array<i64: 0>} : (tensor<16384x8xf32>) -> tensor<8xf32>
  %t = "gradopt.sum"(%y) {axes = array<i64: 0>, gradopt.form = "split-16"} : (tensor<8192x4xf32>) -> tensor<4xf32>
  %r = "gradopt.sum"(%y) {axes = array<i64: 1>} : (tensor<8192x4xf32>) -> tensor<8192xf32>
  return %s, %t, %r : tensor<8xf32>, tensor<4xf32>, tensor<8192xf32>
}
