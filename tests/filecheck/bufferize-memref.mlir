// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// RUN: gradopt-opt %s --split-input-file --allow-unregistered-dialect --pass-pipeline='gradopt-plan-memory,gradopt-bufferize{form=memref}' | filecheck %s
// RUN: gradopt-opt %s --split-input-file --allow-unregistered-dialect --pass-pipeline='gradopt-bufferize{form=memref},convert-memref-form-to-llvm' | filecheck %s --check-prefix LLVM

// Values are views of the arena at their offsets; the result is made in the caller's memory. The
// fill is each product's own, and in its place.

!m = tensor<8x8xf32>

func.func @chain(%x: !m, %w: !m) -> !m {
  %empty = tensor.empty() : !m
  %zero = arith.constant 0.0 : f32
  %fill = linalg.fill ins(%zero : f32) outs(%empty : !m) -> !m
  %a = linalg.matmul ins(%x, %w : !m, !m) outs(%fill : !m) -> !m
  %b = linalg.matmul ins(%a, %w : !m, !m) outs(%fill : !m) -> !m
  %c = linalg.matmul ins(%b, %a : !m, !m) outs(%fill : !m) -> !m
  return %c : !m
}

// CHECK-LABEL: func.func @chain(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: memref<8x8xf32>, [[W:%[a-z0-9]+]]: memref<8x8xf32>, [[OUT:%[a-z0-9]+]]: memref<8x8xf32>, [[ARENA:%[a-z0-9]+]]: memref<?xi8>)
// CHECK-SAME:    gradopt.arena = {bound = 512 : i64, size = 512 : i64}
// CHECK-SAME:    gradopt.inputs = 2 : i64, gradopt.results = array<i64: 2>
// CHECK-DAG:     [[C0:%[a-z0-9]+]] = arith.constant 0 : index
// CHECK:         [[A:%[a-z0-9_]+]] = memref.view [[ARENA]][[[C0]]][] : memref<?xi8> to memref<8x8xf32>
// CHECK:         linalg.fill {{.*}} outs([[A]] :
// CHECK:         linalg.matmul ins([[X]], [[W]] : {{.*}} outs([[A]] :
// CHECK:         [[C256:%[a-z0-9]+]] = arith.constant 256 : index
// CHECK:         [[B:%[a-z0-9_]+]] = memref.view [[ARENA]][[[C256]]][] : memref<?xi8> to memref<8x8xf32>
// CHECK:         linalg.fill {{.*}} outs([[B]] :
// CHECK:         linalg.matmul ins([[A]], [[W]] : {{.*}} outs([[B]] :
// CHECK:         linalg.fill {{.*}} outs([[OUT]] :
// CHECK:         linalg.matmul ins([[B]], [[A]] : {{.*}} outs([[OUT]] :
// CHECK-NEXT:    return

// LLVM-LABEL: llvm.func @chain(
// LLVM:       llvm.func @_mlir_ciface_chain(

// -----

// What is cut out and padded is copied; a gather reads at its positions; a constant is a global.
// An argument that is returned is copied at the end.

func.func @pieces(%x: tensor<4x3xf32>, %i: tensor<2x1xi32>) -> (tensor<2x3xf32>, tensor<4x3xf32>, tensor<2xf32>) {
  %part = tensor.extract_slice %x[0, 0] [2, 3] [2, 1] : tensor<4x3xf32> to tensor<2x3xf32>
  %zero = arith.constant 0.0 : f32
  %pad = tensor.pad %part low[1, 0] high[1, 0] {
  ^bb0(%p: index, %q: index):
    tensor.yield %zero : f32
  } : tensor<2x3xf32> to tensor<4x3xf32>
  %out = tensor.empty() : tensor<2x3xf32>
  %rows = "iree_linalg_ext.gather"(%pad, %i, %out) {dimension_map = array<i64: 0>, operandSegmentSizes = array<i32: 1, 1, 1, 0>} : (tensor<4x3xf32>, tensor<2x1xi32>, tensor<2x3xf32>) -> tensor<2x3xf32>
  %k = arith.constant dense<[1.0, 2.0]> : tensor<2xf32>
  return %rows, %x, %k : tensor<2x3xf32>, tensor<4x3xf32>, tensor<2xf32>
}

// CHECK:         memref.global "private" constant @pieces_constant0 : memref<2xf32> = dense<[1.000000e+00, 2.000000e+00]>
// CHECK-LABEL: func.func @pieces(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: memref<4x3xf32>, [[I:%[a-z0-9]+]]: memref<2x1xi32>, [[ROWS:%[a-z0-9]+]]: memref<2x3xf32>, [[COPY:%[a-z0-9]+]]: memref<4x3xf32>, [[K:%[a-z0-9]+]]: memref<2xf32>,
// CHECK-SAME:    gradopt.results = array<i64: 2, 3, 4>
// CHECK:         [[CUT:%[a-z0-9_]+]] = memref.subview [[X]][0, 0] [2, 3] [2, 1]
// CHECK:         [[PART:%[a-z0-9_]+]] = memref.view
// CHECK:         linalg.generic {{.*}} ins([[CUT]] : {{.*}} outs([[PART]] :
// CHECK:         [[PAD:%[a-z0-9_]+]] = memref.view
// CHECK:         linalg.generic {{.*}} outs([[PAD]] :
// CHECK:         [[INSIDE:%[a-z0-9_]+]] = memref.subview [[PAD]][1, 0] [2, 3] [1, 1]
// CHECK:         linalg.generic {{.*}} ins([[PART]] : {{.*}} outs([[INSIDE]] :
// CHECK:         linalg.generic {{.*}} outs([[ROWS]] :
// CHECK:           memref.load [[I]]
// CHECK:           memref.load [[PAD]]
// CHECK:         [[G:%[a-z0-9_]+]] = memref.get_global @pieces_constant0
// CHECK:         linalg.generic {{.*}} ins([[X]] : {{.*}} outs([[COPY]] :
// CHECK:         linalg.generic {{.*}} ins([[G]] : {{.*}} outs([[K]] :

// -----

// A donated argument is overwritten by its result: no argument for it is added.

func.func @step(%w: tensor<4xf32> {gradopt.donated}, %g: tensor<4xf32>) -> tensor<4xf32> {
  %out = tensor.empty() : tensor<4xf32>
  %new = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%w, %g : tensor<4xf32>, tensor<4xf32>) outs(%out : tensor<4xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %0 = arith.subf %a, %b : f32
    linalg.yield %0 : f32
  } -> tensor<4xf32>
  return %new : tensor<4xf32>
}

// CHECK-LABEL: func.func @step(
// CHECK-SAME:    [[W:%[a-z0-9]+]]: memref<4xf32> {gradopt.donated}, [[G:%[a-z0-9]+]]: memref<4xf32>, {{%[a-z0-9]+}}: memref<?xi8>)
// CHECK-SAME:    gradopt.results = array<i64: 0>
// CHECK:         linalg.generic {{.*}} ins([[W]], [[G]] : {{.*}} outs([[W]] :

// -----

// A scan and a scatter are loops; the scatter writes where the scan's result is.

func.func @loops(%x: tensor<4x3xf32>, %i: tensor<2x1xi32>, %u: tensor<2x3xf32>) -> tensor<4x3xf32> {
  %out = tensor.empty() : tensor<4x3xf32>
  %row = tensor.empty() : tensor<3xf32>
  %zero = arith.constant 0.0 : f32
  %start = linalg.fill ins(%zero : f32) outs(%row : tensor<3xf32>) -> tensor<3xf32>
  %sums:2 = "iree_linalg_ext.scan"(%x, %out, %start) ({
  ^bb0(%a: f32, %b: f32):
    %s = arith.addf %a, %b : f32
    "iree_linalg_ext.yield"(%s) : (f32) -> ()
  }) {dimension = 0 : i64, inclusive = true, operandSegmentSizes = array<i32: 1, 2>} : (tensor<4x3xf32>, tensor<4x3xf32>, tensor<3xf32>) -> (tensor<4x3xf32>, tensor<3xf32>)
  %all = "iree_linalg_ext.scatter"(%u, %i, %sums#0) ({
  ^bb0(%a: f32, %b: f32):
    %s = arith.mulf %a, %b : f32
    "iree_linalg_ext.yield"(%s) : (f32) -> ()
  }) {dimension_map = array<i64: 0>, unique_indices = false, operandSegmentSizes = array<i32: 1, 1, 1, 0>} : (tensor<2x3xf32>, tensor<2x1xi32>, tensor<4x3xf32>) -> tensor<4x3xf32>
  return %all : tensor<4x3xf32>
}

// CHECK-LABEL: func.func @loops(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: memref<4x3xf32>, [[I:%[a-z0-9]+]]: memref<2x1xi32>, [[U:%[a-z0-9]+]]: memref<2x3xf32>, [[OUT:%[a-z0-9]+]]: memref<4x3xf32>,
// CHECK:         [[CARRY:%[a-z0-9_]+]] = memref.view
// CHECK:         linalg.fill {{.*}} outs([[CARRY]] :
// CHECK:         scf.for
// CHECK:           scf.for
// CHECK:             memref.load [[CARRY]]
// CHECK:             memref.load [[X]]
// CHECK:             arith.addf
// CHECK:             memref.store {{.*}}, [[OUT]]
// CHECK:             memref.store {{.*}}, [[CARRY]]
// CHECK:         scf.for
// CHECK:           scf.for
// CHECK:             memref.load [[I]]
// CHECK:             memref.load [[U]]
// CHECK:             memref.load [[OUT]]
// CHECK:             arith.mulf
// CHECK:             memref.store {{.*}}, [[OUT]]

// -----

// Values of unknown size are allocated; a result of unknown size is handed over by its address. A
// check that fails notes its number and returns.

func.func @unknown(%x: tensor<?xf32>, %y: tensor<?xf32>) -> tensor<?xf32> {
  %c0 = arith.constant 0 : index
  %n = tensor.dim %x, %c0 : tensor<?xf32>
  %m = tensor.dim %y, %c0 : tensor<?xf32>
  %same = arith.cmpi eq, %n, %m : index
  cf.assert %same, "extents differ"
  %out = tensor.empty(%n) : tensor<?xf32>
  %sum = linalg.add ins(%x, %y : tensor<?xf32>, tensor<?xf32>) outs(%out : tensor<?xf32>) -> tensor<?xf32>
  %twice = linalg.add ins(%sum, %y : tensor<?xf32>, tensor<?xf32>) outs(%out : tensor<?xf32>) -> tensor<?xf32>
  return %twice : tensor<?xf32>
}

// CHECK-LABEL: func.func @unknown(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: memref<?xf32>, [[Y:%[a-z0-9]+]]: memref<?xf32>, [[OUT:%[a-z0-9]+]]: memref<2xi64>, {{%[a-z0-9]+}}: memref<?xi8>, [[FAILED:%[a-z0-9]+]]: memref<1xi64>)
// CHECK-SAME:    gradopt.allocated = array<i64: 0>
// CHECK-SAME:    gradopt.failures = ["extents differ"]
// CHECK:         cf.cond_br
// CHECK:         [[A:%[a-z0-9_]+]] = memref.alloc
// CHECK:         linalg.add ins([[X]], [[Y]] : {{.*}} outs([[A]] :
// CHECK:         [[B:%[a-z0-9_]+]] = memref.alloc
// CHECK:         linalg.add ins([[A]], [[Y]] : {{.*}} outs([[B]] :
// CHECK:         memref.extract_aligned_pointer_as_index [[B]]
// CHECK:         memref.store {{.*}}, [[OUT]]
// CHECK:         memref.dealloc [[A]]
// CHECK:         return
// CHECK:         [[ONE:%[a-z0-9_]+]] = arith.constant 1 : i64
// CHECK:         memref.store [[ONE]], [[FAILED]]
// CHECK:         return
