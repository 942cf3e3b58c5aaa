// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// RUN: gradopt-opt %s --gradopt-layout | filecheck %s

// Convolutions and pools with channels first move to channels last, with what stands between them.

!image = tensor<2x4x6x5xf32>
!kernel = tensor<4x4x3x3xf32>
!row = tensor<4xf32>

// --- what moves ----------------------------------------------------------------------------------

// The arguments are transposed once, and the result of the last convolution goes back; the sum costs
// the same in both layouts, and stays.
// CHECK-LABEL: func.func @residual(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<2x4x6x5xf32>, [[W:%[a-z0-9]+]]: tensor<4x4x3x3xf32>
// CHECK-NEXT:    [[A:%[a-z0-9]+]] = "gradopt.transpose"([[X]]) {permutation = array<i64: 0, 2, 3, 1>}
// CHECK-NEXT:    [[K:%[a-z0-9]+]] = "gradopt.transpose"([[W]]) {permutation = array<i64: 2, 3, 1, 0>}
// CHECK-NEXT:    [[Y:%[a-z0-9]+]] = "gradopt.conv"([[A]], [[K]])
// CHECK-NOT:     channels_last = false
// CHECK-NEXT:    [[R:%[a-z0-9]+]] = "gradopt.relu"([[Y]]) : (tensor<2x6x5x4xf32>)
// CHECK-NEXT:    [[Z:%[a-z0-9]+]] = "gradopt.conv"([[R]], [[K]])
// CHECK-NEXT:    [[B:%[a-z0-9]+]] = "gradopt.transpose"([[Z]]) {permutation = array<i64: 0, 3, 1, 2>}
// CHECK-NEXT:    [[S:%[a-z0-9]+]] = "gradopt.add"([[B]], [[X]])
// CHECK-NEXT:    return [[S]]
func.func @residual(%x: !image, %w: !kernel) -> !image {
  %0 = "gradopt.conv"(%x, %w) {channels_last = false, dilation = array<i64: 1, 1>,
      high = array<i64: 1, 1>, low = array<i64: 1, 1>, strides = array<i64: 1, 1>}
      : (!image, !kernel) -> !image
  %1 = "gradopt.relu"(%0) : (!image) -> !image
  %2 = "gradopt.conv"(%1, %w) {channels_last = false, dilation = array<i64: 1, 1>,
      high = array<i64: 1, 1>, low = array<i64: 1, 1>, strides = array<i64: 1, 1>}
      : (!image, !kernel) -> !image
  %3 = "gradopt.add"(%2, %x) : (!image, !image) -> !image
  return %3 : !image
}

// A broadcast of one number a channel, constants, and reductions read and give rows as they are.
// CHECK-LABEL: func.func @pooled(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<2x4x6x5xf32>, [[G:%[a-z0-9]+]]: tensor<4xf32>
// CHECK:         [[A:%[a-z0-9]+]] = "gradopt.transpose"([[X]]) {permutation = array<i64: 0, 2, 3, 1>}
// CHECK-NEXT:    [[P:%[a-z0-9]+]] = "gradopt.max_pool"([[A]]) {
// CHECK-NOT:     channels_last
// CHECK-NEXT:    [[B:%[a-z0-9]+]] = "gradopt.broadcast"([[G]])
// CHECK-SAME:      {dims = array<i64: 3>, shape = array<i64: 2, 3, 2, 4>}
// CHECK-NEXT:    [[M:%[a-z0-9]+]] = "gradopt.mul"([[P]], [[B]])
// CHECK-NEXT:    [[S:%[a-z0-9]+]] = "gradopt.sum"([[M]]) {axes = array<i64: 0, 1, 2>}
// CHECK-NEXT:    return [[S]]
func.func @pooled(%x: !image, %g: !row) -> !row {
  %0 = "gradopt.max_pool"(%x) {channels_last = false, base_dilation = array<i64: 1, 1>,
      dilation = array<i64: 1, 1>, high = array<i64: 0, 0>, low = array<i64: 0, 0>,
      strides = array<i64: 2, 2>, window = array<i64: 2, 2>} : (!image) -> tensor<2x4x3x2xf32>
  %1 = "gradopt.broadcast"(%g) {dims = array<i64: 1>, shape = array<i64: 2, 4, 3, 2>}
      : (!row) -> tensor<2x4x3x2xf32>
  %2 = "gradopt.mul"(%0, %1) : (tensor<2x4x3x2xf32>, tensor<2x4x3x2xf32>) -> tensor<2x4x3x2xf32>
  %3 = "gradopt.sum"(%2) {axes = array<i64: 0, 2, 3>} : (tensor<2x4x3x2xf32>) -> !row
  return %3 : !row
}

// A product takes the features as they lie.
// CHECK-LABEL: func.func @product(
// CHECK:         [[Y:%[a-z0-9]+]] = "gradopt.conv"(
// CHECK-NEXT:    [[Z:%[a-z0-9]+]] = "gradopt.dot_general"([[Y]], {{.*}}) {lhs_contract = array<i64: 3>
// CHECK-NEXT:    return [[Z]]
func.func @product(%x: !image, %w: !kernel, %m: tensor<4x3xf32>) -> tensor<2x6x5x3xf32> {
  %0 = "gradopt.conv"(%x, %w) {channels_last = false, dilation = array<i64: 1, 1>,
      high = array<i64: 1, 1>, low = array<i64: 1, 1>, strides = array<i64: 1, 1>}
      : (!image, !kernel) -> !image
  %1 = "gradopt.dot_general"(%0, %m) {lhs_contract = array<i64: 1>, rhs_contract = array<i64: 0>}
      : (!image, tensor<4x3xf32>) -> tensor<2x6x5x3xf32>
  return %1 : tensor<2x6x5x3xf32>
}

// --- what stays ----------------------------------------------------------------------------------

// Features are flattened in their own order: they go back for it.
// CHECK-LABEL: func.func @flattened(
// CHECK:         [[Y:%[a-z0-9]+]] = "gradopt.conv"(
// CHECK-NEXT:    [[B:%[a-z0-9]+]] = "gradopt.transpose"([[Y]]) {permutation = array<i64: 0, 3, 1, 2>}
// CHECK-NEXT:    "gradopt.reshape"([[B]]) {shape = array<i64: 2, 120>}
func.func @flattened(%x: !image, %w: !kernel) -> tensor<2x120xf32> {
  %0 = "gradopt.conv"(%x, %w) {channels_last = false, dilation = array<i64: 1, 1>,
      high = array<i64: 1, 1>, low = array<i64: 1, 1>, strides = array<i64: 1, 1>}
      : (!image, !kernel) -> !image
  %1 = "gradopt.reshape"(%0) {shape = array<i64: 2, 120>} : (!image) -> tensor<2x120xf32>
  return %1 : tensor<2x120xf32>
}

// No convolution, no change.
// CHECK-LABEL: func.func @other(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<2x4x6x5xf32>
// CHECK-NEXT:    [[Y:%[a-z0-9]+]] = "gradopt.transpose"([[X]]) {permutation = array<i64: 0, 2, 3, 1>}
// CHECK-NEXT:    [[Z:%[a-z0-9]+]] = "gradopt.relu"([[Y]])
// CHECK-NEXT:    return [[Z]]
func.func @other(%x: !image) -> tensor<2x6x5x4xf32> {
  %0 = "gradopt.transpose"(%x) {permutation = array<i64: 0, 2, 3, 1>}
      : (!image) -> tensor<2x6x5x4xf32>
  %1 = "gradopt.relu"(%0) : (tensor<2x6x5x4xf32>) -> tensor<2x6x5x4xf32>
  return %1 : tensor<2x6x5x4xf32>
}
