// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// RUN: gradopt-opt %s --split-input-file --convert-gradopt-to-linalg | filecheck %s

// What each family of ops becomes; to-linalg.mlir shows what is computed inside generics.

// Contractions read transposed operands through indexing maps: nothing is moved.

func.func @matmul_transposed(%a: tensor<4x8xf32>, %b: tensor<6x4xf32>) -> tensor<8x6xf32> {
  %0 = "gradopt.dot_general"(%a, %b) {lhs_contract = array<i64: 0>, rhs_contract = array<i64: 1>}
      : (tensor<4x8xf32>, tensor<6x4xf32>) -> tensor<8x6xf32>
  return %0 : tensor<8x6xf32>
}

// CHECK-DAG:   [[A:#map[0-9]*]] = affine_map<(d0, d1, d2) -> (d2, d0)>
// CHECK-DAG:   [[B:#map[0-9]*]] = affine_map<(d0, d1, d2) -> (d1, d2)>
// CHECK-DAG:   [[C:#map[0-9]*]] = affine_map<(d0, d1, d2) -> (d0, d1)>
// CHECK-LABEL: func.func @matmul_transposed(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<4x8xf32>, [[Y:%[a-z0-9]+]]: tensor<6x4xf32>
// CHECK-NOT:     transpose
// CHECK:         [[Z:%[0-9]+]] = linalg.fill
// CHECK:         [[R:%[0-9]+]] = linalg.matmul indexing_maps = {{.}}[[A]], [[B]], [[C]]]
// CHECK-SAME:      ins([[X]], [[Y]] : {{.*}}) outs([[Z]] :
// CHECK-NEXT:    return [[R]]

// -----

func.func @batch_matmul(%a: tensor<5x4x8xf32>, %b: tensor<5x4x6xf32>) -> tensor<5x8x6xf32> {
  %0 = "gradopt.dot_general"(%a, %b) {lhs_batch = array<i64: 0>, rhs_batch = array<i64: 0>,
      lhs_contract = array<i64: 1>, rhs_contract = array<i64: 1>}
      : (tensor<5x4x8xf32>, tensor<5x4x6xf32>) -> tensor<5x8x6xf32>
  return %0 : tensor<5x8x6xf32>
}

// CHECK-DAG:   [[A:#map[0-9]*]] = affine_map<(d0, d1, d2, d3) -> (d0, d3, d1)>
// CHECK-DAG:   [[B:#map[0-9]*]] = affine_map<(d0, d1, d2, d3) -> (d0, d3, d2)>
// CHECK-LABEL: func.func @batch_matmul(
// CHECK-NOT:     transpose
// CHECK:         linalg.batch_matmul indexing_maps = {{.}}[[A]], [[B]], #map

// -----

// Several contracted axes are merged; 16-bit products are summed in 32 bits and rounded once.

func.func @contract_two_axes(%a: tensor<4x2x3xf16>, %b: tensor<2x3x5xf16>) -> tensor<4x5xf16> {
  %0 = "gradopt.dot_general"(%a, %b) {
      lhs_contract = array<i64: 1, 2>, rhs_contract = array<i64: 0, 1>}
      : (tensor<4x2x3xf16>, tensor<2x3x5xf16>) -> tensor<4x5xf16>
  return %0 : tensor<4x5xf16>
}

// CHECK-LABEL: func.func @contract_two_axes(
// CHECK-DAG:     [[A:%[a-z0-9_]+]] = tensor.collapse_shape {{.*}} into tensor<4x6xf16>
// CHECK-DAG:     [[B:%[a-z0-9_]+]] = tensor.collapse_shape {{.*}} into tensor<6x5xf16>
// CHECK:         linalg.matmul {iree.opt.data_tiling} ins([[A]], [[B]] : {{.*}} -> tensor<4x5xf32>
// CHECK:         arith.truncf {{.*}} : f32 to f16

// -----

// A product with one column is a plain sum over rows.

func.func @matvec(%a: tensor<4x8xf32>, %b: tensor<8xf32>) -> tensor<4xf32> {
  %0 = "gradopt.dot_general"(%a, %b) {lhs_contract = array<i64: 1>, rhs_contract = array<i64: 0>}
      : (tensor<4x8xf32>, tensor<8xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @matvec(
// CHECK-NOT:     linalg.mat
// CHECK:         linalg.generic {{.*}}"reduction"]
// CHECK:           arith.mulf
// CHECK-NEXT:      arith.addf

// -----

// Reductions start from the neutral element.

!m = tensor<4x8xf32>

func.func @reductions(%x: !m) -> (tensor<4xf32>, tensor<8xf32>) {
  %0 = "gradopt.sum"(%x) {axes = array<i64: 1>} : (!m) -> tensor<4xf32>
  %1 = "gradopt.max"(%x) {axes = array<i64: 0>} : (!m) -> tensor<8xf32>
  return %0, %1 : tensor<4xf32>, tensor<8xf32>
}

// CHECK-LABEL: func.func @reductions(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<4x8xf32>
// CHECK-DAG:     [[INF:%[a-z0-9_]+]] = arith.constant 0xFF800000 : f32
// CHECK-DAG:     [[ZERO:%[a-z0-9_]+]] = arith.constant 0.0{{.*}} : f32
// CHECK:         [[S:%[0-9]+]] = linalg.fill ins([[ZERO]] : f32) {{.*}} -> tensor<4xf32>
// CHECK:         linalg.generic {{.*}} ins([[X]] : tensor<4x8xf32>) outs([[S]] :
// CHECK:           arith.addf
// CHECK:         [[M:%[0-9]+]] = linalg.fill ins([[INF]] : f32) {{.*}} -> tensor<8xf32>
// CHECK:         linalg.generic {{.*}} ins([[X]] : tensor<4x8xf32>) outs([[M]] :
// CHECK:           arith.maximumf

// -----

// A position and the element there are found together; the positions are 32 bits wide.

func.func @argmax(%x: tensor<4x8xf32>) -> tensor<4xi32> {
  %0 = "gradopt.argmax"(%x) {axis = 1 : i64} : (tensor<4x8xf32>) -> tensor<4xi32>
  return %0 : tensor<4xi32>
}

// CHECK-LABEL: func.func @argmax(
// CHECK:         [[R:%[0-9]+]]:2 = linalg.generic {{.*}} outs({{.*}} : tensor<4xf32>, tensor<4xi32>)
// CHECK:           linalg.index 1
// CHECK:         return [[R]]#1

// -----

// Convolutions with channels last are named ops, behind the padding.

!x = tensor<1x8x8x4xf32>
!w = tensor<3x3x4x16xf32>

func.func @conv(%x: !x, %w: !w) -> tensor<1x4x4x16xf32> {
  %0 = "gradopt.conv"(%x, %w) {strides = array<i64: 2, 2>, low = array<i64: 1, 1>,
      high = array<i64: 0, 0>, dilation = array<i64: 1, 1>} : (!x, !w) -> tensor<1x4x4x16xf32>
  return %0 : tensor<1x4x4x16xf32>
}

// CHECK-LABEL: func.func @conv(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<1x8x8x4xf32>, [[W:%[a-z0-9]+]]: tensor<3x3x4x16xf32>
// CHECK:         [[P:%[a-z0-9]+]] = tensor.pad [[X]] low[0, 1, 1, 0] high[0, 0, 0, 0]
// CHECK:         linalg.conv_2d_nhwc_hwcf {dilations = dense<1> {{.*}}, strides = dense<2>
// CHECK-SAME:      ins([[P]], [[W]] :

// -----

// What can be a view is one; the rest are copies.

!x = tensor<4x6xf32>

func.func @moves(%x: !x) -> (tensor<2x2x6xf32>, tensor<6x4xf32>, tensor<2x3xf32>, tensor<5x6xf32>) {
  %0 = "gradopt.reshape"(%x) {shape = array<i64: 2, 2, 6>} : (!x) -> tensor<2x2x6xf32>
  %1 = "gradopt.transpose"(%x) {permutation = array<i64: 1, 0>} : (!x) -> tensor<6x4xf32>
  %2 = "gradopt.slice"(%x) {start = array<i64: 1, 0>, limit = array<i64: 3, 6>,
      stride = array<i64: 1, 2>} : (!x) -> tensor<2x3xf32>
  %3 = "gradopt.pad"(%x) {low = array<i64: 1, 0>, high = array<i64: 0, 0>,
      interior = array<i64: 0, 0>, value = 2.0 : f64} : (!x) -> tensor<5x6xf32>
  return %0, %1, %2, %3 : tensor<2x2x6xf32>, tensor<6x4xf32>, tensor<2x3xf32>, tensor<5x6xf32>
}

// CHECK-LABEL: func.func @moves(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<4x6xf32>
// CHECK-DAG:     [[C:%[a-z0-9_]+]] = arith.constant 2.0{{.*}} : f32
// CHECK-DAG:     tensor.expand_shape [[X]] {{.*}} into tensor<2x2x6xf32>
// CHECK-DAG:     linalg.transpose ins([[X]] : {{.*}} permutation = [1, 0]
// CHECK-DAG:     tensor.extract_slice [[X]][1, 0] [2, 3] [1, 2]
// CHECK-DAG:     tensor.pad [[X]] low[1, 0] high[0, 0]
// CHECK-DAG:     tensor.yield [[C]]
// CHECK:         return

// -----

// Tensors are joined along the first axis as a whole; along others few small equal parts by a choice,
// others part by part.

!x = tensor<6xf32>
!m = tensor<6x2xf32>

func.func @joins(%x: !x, %y: !x, %m: !m) -> (tensor<12xf32>, !m, tensor<6x3xf32>) {
  %0 = "gradopt.concat"(%x, %y) {axis = 0 : i64} : (!x, !x) -> tensor<12xf32>
  %1 = "gradopt.stack"(%x, %y) {axis = 1 : i64} : (!x, !x) -> !m
  %2 = "gradopt.reshape"(%x) {shape = array<i64: 6, 1>} : (!x) -> tensor<6x1xf32>
  %3 = "gradopt.concat"(%m, %2) {axis = 1 : i64} : (!m, tensor<6x1xf32>) -> tensor<6x3xf32>
  return %0, %1, %3 : tensor<12xf32>, !m, tensor<6x3xf32>
}

// CHECK-LABEL: func.func @joins(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<6xf32>, [[Y:%[a-z0-9]+]]: tensor<6xf32>, [[M:%[a-z0-9]+]]:
// CHECK:         tensor.concat dim(0) [[X]], [[Y]]
// CHECK:         linalg.generic
// CHECK:           [[I:%[0-9]+]] = linalg.index 1
// CHECK:           [[FIRST:%[0-9]+]] = arith.cmpi eq, [[I]]
// CHECK:           arith.select [[FIRST]]
// CHECK:         [[W:%[a-z0-9_]+]] = tensor.insert_slice [[M]] into {{%[0-9]+}}[0, 0]
// CHECK:         tensor.insert_slice {{.*}} into [[W]][0, 2]
// CHECK:         return

// -----

// Positions are brought inside before anything is read or added there. What is read is not fused
// into what uses it. A table that is the caller's is copied before rows are added to it, and what is
// added is not fused with what makes it.

!t = tensor<10x4xf32>
!i = tensor<3xi32>
!r = tensor<3x4xf32>

func.func @indexing(%x: !t, %i: !i, %u: !r) -> (!r, !t) {
  %0 = "gradopt.take"(%x, %i) : (!t, !i) -> !r
  %1 = "gradopt.scatter_add"(%x, %i, %u) : (!t, !i, !r) -> !t
  return %0, %1 : !r, !t
}

// CHECK-LABEL: func.func @indexing(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<10x4xf32>, [[I:%[a-z0-9]+]]: tensor<3xi32>, [[U:%[a-z0-9]+]]:
// CHECK:         [[P:%[0-9]+]] = linalg.generic {{.*}} ins([[I]] : tensor<3xi32>)
// CHECK:           arith.maxsi
// CHECK:           arith.minsi
// CHECK:         [[Q:%[a-z0-9_]+]] = tensor.expand_shape [[P]] {{.*}} into tensor<3x1xi32>
// CHECK:         [[R:%[0-9]+]] = "iree_linalg_ext.gather"([[X]], [[Q]],
// CHECK:         [[G:%[0-9]+]] = "iree_tensor_ext.compute_barrier.start"([[R]])
// CHECK:         [[T:%[0-9]+]] = linalg.generic {{.*}} ins([[X]], {{.*}} : tensor<10x4xf32>
// CHECK:         [[V:%[0-9]+]] = "iree_tensor_ext.compute_barrier.start"([[U]])
// CHECK:         [[W:%[0-9]+]] = "iree_tensor_ext.compute_barrier.start"([[Q]])
// CHECK:         [[S:%[0-9]+]] = "iree_linalg_ext.scatter"([[V]], [[W]], [[T]])
// CHECK:           arith.addf
// CHECK:           unique_indices = false
// CHECK:         return [[G]], [[S]]

// -----

// Softmax: the largest element, the sum of exponentials below it, the quotients.

!m = tensor<8x10xf32>

func.func @softmax(%x: !m) -> !m {
  %0 = "gradopt.softmax"(%x) {axis = 1 : i64} : (!m) -> !m
  return %0 : !m
}

// CHECK-LABEL: func.func @softmax(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<8x10xf32>
// CHECK:         [[TOP:%[0-9]+]] = linalg.generic {{.*}}"reduction"]} ins([[X]] :
// CHECK:           arith.maximumf
// CHECK:         [[SUM:%[0-9]+]] = linalg.generic {{.*}}"reduction"]} ins([[X]], [[TOP]] :
// CHECK:           math.exp
// CHECK:           arith.addf
// CHECK:         linalg.generic {{.*}}["parallel", "parallel"]} ins([[X]], [[TOP]],
// CHECK:           math.exp
// CHECK:           arith.divf

// -----

// The loss reads one logit a row, at the label.

!m = tensor<8x10xf32>

func.func @cross_entropy(%x: !m, %labels: tensor<8xi32>) -> tensor<8xf32> {
  %0:2 = "gradopt.cross_entropy"(%x, %labels)
      : (!m, tensor<8xi32>) -> (tensor<8xf32>, tensor<8xf32>)
  return %0#0 : tensor<8xf32>
}

// CHECK-LABEL: func.func @cross_entropy(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<8x10xf32>, [[L:%[a-z0-9]+]]: tensor<8xi32>
// CHECK:           math.log
// CHECK:         [[READ:%[0-9]+]] = "iree_tensor_ext.compute_barrier.start"([[X]])
// CHECK:         [[LOSS:%[0-9]+]] = linalg.generic {{.*}} ins([[L]],
// CHECK:           tensor.extract [[READ]][
// CHECK:           arith.subf
// CHECK:         return [[LOSS]]
