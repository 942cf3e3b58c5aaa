// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// RUN: gradopt-opt %s --gradopt-product-forms=native=bfloat16 --split-input-file | filecheck %s
// RUN: gradopt-opt %s --gradopt-product-forms=native= --split-input-file | filecheck %s --check-prefix=WIDE

// Operands are rounded once for all products that read them, and stay narrow where the target
// multiplies them.
// CHECK-LABEL: func.func @shared
// CHECK-COUNT-2: "gradopt.convert"{{.*}} -> tensor<4x4xbf16>
// CHECK-NOT: gradopt.convert
// CHECK: "gradopt.dot_general"{{.*}}precision = "bfloat16"{{.*}}(tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xf32>
// CHECK: "gradopt.dot_general"{{.*}}precision = "bfloat16"{{.*}}(tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xf32>
// WIDE-LABEL: func.func @shared
// WIDE-NOT: precision
// WIDE: "gradopt.dot_general"{{.*}}(tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
func.func @shared(%x: tensor<4x4xf32>, %w: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %0 = "gradopt.dot_general"(%x, %w) {lhs_contract = array<i64: 1>, rhs_contract = array<i64: 0>, precision = "bfloat16"} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %1 = "gradopt.dot_general"(%w, %x) {lhs_contract = array<i64: 1>, rhs_contract = array<i64: 0>, precision = "bfloat16"} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %2 = "gradopt.add"(%0, %1) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return %2 : tensor<4x4xf32>
}

// -----

// A product of 16 bits without a unit: in float32, rounded.
// CHECK-LABEL: func.func @half
// CHECK: "gradopt.conv"{{.*}} -> tensor<1x3x2xf32>
// CHECK: "gradopt.convert"{{.*}} -> tensor<1x3x2xf16>
func.func @half(%x: tensor<1x4x3xf16>, %w: tensor<2x3x2xf16>) -> tensor<1x3x2xf16> {
  %0 = "gradopt.conv"(%x, %w) {strides = array<i64: 1>, low = array<i64: 0>, high = array<i64: 0>, dilation = array<i64: 1>} : (tensor<1x4x3xf16>, tensor<2x3x2xf16>) -> tensor<1x3x2xf16>
  return %0 : tensor<1x3x2xf16>
}

// -----

// What was widened is read as it was.
// CHECK-LABEL: func.func @widened
// CHECK: "gradopt.dot_general"{{.*}}(tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xf32>
// WIDE-LABEL: func.func @widened
// WIDE: "gradopt.dot_general"{{.*}}(tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
func.func @widened(%x: tensor<4x4xbf16>) -> tensor<4x4xf32> {
  %0 = "gradopt.convert"(%x) {dtype = f32} : (tensor<4x4xbf16>) -> tensor<4x4xf32>
  %1 = "gradopt.dot_general"(%0, %0) {lhs_contract = array<i64: 1>, rhs_contract = array<i64: 0>} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return %1 : tensor<4x4xf32>
}
