// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// RUN: gradopt-opt %s --split-input-file --gradopt-bufferize | filecheck %s

// An argument that is returned becomes a copy, element by element, behind a number that IREE is
// kept from knowing.

!v = tensor<3xf32>

func.func @returned_argument(%x: !v) -> !v {
  return %x : !v
}

// CHECK-LABEL: func.func @returned_argument(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<3xf32>
// CHECK:         [[N:%[0-9]+]] = "util.optimization_barrier"({{%[0-9]+}}) : (tensor<1xi32>)
// CHECK:         [[Y:%[0-9]+]] = linalg.generic {{.*}} ins([[X]], [[N]] :
// CHECK:           arith.select
// CHECK:         return [[Y]] : tensor<3xf32>

// -----

// The second of two equal results becomes a copy; the first stays what it is.

!v = tensor<3xf32>

func.func @result_twice(%x: !v) -> (!v, !v) {
  %0 = math.exp %x : !v
  return %0, %0 : !v, !v
}

// CHECK-LABEL: func.func @result_twice(
// CHECK:         [[E:%[0-9]+]] = math.exp
// CHECK:         [[Y:%[0-9]+]] = linalg.generic {{.*}} ins([[E]],
// CHECK:         return [[E]], [[Y]]

// -----

// Results that are distinct already stay as they are, and so do functions that are not public.

!v = tensor<3xf32>

func.func private @not_public(%x: !v {gradopt.donated}) -> !v {
  return %x : !v
}

func.func @distinct(%x: !v) -> (!v, !v) {
  %0 = math.exp %x : !v
  %1 = math.sin %x : !v
  return %0, %1 : !v, !v
}

// CHECK-LABEL: func.func private @not_public(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<3xf32> {gradopt.donated}) -> tensor<3xf32>
// CHECK-NEXT:    return [[X]]
// CHECK-LABEL: func.func @distinct(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<3xf32>) -> (tensor<3xf32>, tensor<3xf32>)
// CHECK-NEXT:    [[A:%[0-9]+]] = math.exp [[X]]
// CHECK-NEXT:    [[B:%[0-9]+]] = math.sin [[X]]
// CHECK-NEXT:    return [[A]], [[B]]

// -----

// A donated input gives its storage to the first result of its type that is free: a further
// argument, tied to the result, that takes the input's place one call later.

!v = tensor<3xf32>
!w = tensor<2xf32>

func.func @donated(%x: !v {gradopt.donated}, %y: !v {gradopt.donated}, %z: !w {gradopt.donated})
    -> (!w, !v, !v) {
  %0 = math.exp %z : !w
  %1 = math.exp %x : !v
  %2 = arith.addf %x, %y : !v
  return %0, %1, %2 : !w, !v, !v
}

// CHECK-LABEL: func.func @donated(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<3xf32> {gradopt.donated},
// CHECK-SAME:    [[Y:%[a-z0-9]+]]: tensor<3xf32> {gradopt.donated},
// CHECK-SAME:    [[Z:%[a-z0-9]+]]: tensor<2xf32> {gradopt.donated},
// CHECK-SAME:    {{%[a-z0-9]+}}: tensor<3xf32> {gradopt.storage = 0 : i64, iree.abi.output = 1 : index},
// CHECK-SAME:    {{%[a-z0-9]+}}: tensor<3xf32> {gradopt.storage = 1 : i64, iree.abi.output = 2 : index},
// CHECK-SAME:    {{%[a-z0-9]+}}: tensor<2xf32> {gradopt.storage = 2 : i64, iree.abi.output = 0 : index})
// CHECK-NEXT:    [[A:%[0-9]+]] = math.exp [[Z]]
// CHECK-NEXT:    [[B:%[0-9]+]] = math.exp [[X]]
// CHECK-NEXT:    [[C:%[0-9]+]] = arith.addf [[X]], [[Y]]
// CHECK-NEXT:    return [[A]], [[B]], [[C]]

// -----

// A position chooses the result, which is then not free for others.

!v = tensor<3xf32>

func.func @donated_to(%x: !v {gradopt.donated}, %y: !v {gradopt.donated = 0 : i64}) -> (!v, !v) {
  %0 = math.exp %x : !v
  %1 = math.sin %y : !v
  return %0, %1 : !v, !v
}

// CHECK-LABEL: func.func @donated_to(
// CHECK-SAME:    {{%[a-z0-9]+}}: tensor<3xf32> {gradopt.storage = 0 : i64, iree.abi.output = 1 : index},
// CHECK-SAME:    {{%[a-z0-9]+}}: tensor<3xf32> {gradopt.storage = 1 : i64, iree.abi.output = 0 : index})

// -----

// An input of a type that no result has is donated in vain.

func.func @donated_in_vain(%x: tensor<3xf32> {gradopt.donated}) -> tensor<f32> {
  %c = arith.constant 0 : index
  %0 = tensor.extract %x[%c] : tensor<3xf32>
  %1 = tensor.from_elements %0 : tensor<f32>
  return %1 : tensor<f32>
}

// CHECK-LABEL: func.func @donated_in_vain(
// CHECK-SAME:    {{%[a-z0-9]+}}: tensor<3xf32> {gradopt.donated}) -> tensor<f32>
// CHECK-NOT:     iree.abi.output

// -----

// A donated input that is returned is copied first: the copy is what is written into the storage.

!v = tensor<3xf32>

func.func @donated_and_returned(%x: !v {gradopt.donated}) -> !v {
  return %x : !v
}

// CHECK-LABEL: func.func @donated_and_returned(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<3xf32> {gradopt.donated},
// CHECK-SAME:    {{%[a-z0-9]+}}: tensor<3xf32> {gradopt.storage = 0 : i64, iree.abi.output = 0 : index})
// CHECK:         [[Y:%[0-9]+]] = linalg.generic {{.*}} ins([[X]],
// CHECK:         return [[Y]]

// -----

// Storage whose size is known only at run time is not shared; copies are made all the same.

!v = tensor<?xf32>

func.func @unknown_extent(%x: !v {gradopt.donated}) -> !v {
  return %x : !v
}

// CHECK-LABEL: func.func @unknown_extent(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<?xf32> {gradopt.donated}) -> tensor<?xf32>
// CHECK:         [[N:%[a-z0-9_]+]] = tensor.dim [[X]],
// CHECK:         [[O:%[0-9]+]] = tensor.empty([[N]]) : tensor<?xf32>
// CHECK:         [[Y:%[0-9]+]] = linalg.generic {{.*}} ins([[X]], {{.*}} outs([[O]] :
// CHECK:         return [[Y]]

// -----

// With static allocation every result has its argument, those of donated inputs first, and the
// temporaries have theirs.

func.func @static(%x: tensor<3xf32> {gradopt.donated}, %y: tensor<2xf32>)
    -> (tensor<2xf32>, tensor<3xf32>) attributes {gradopt.static_alloc} {
  return %y, %x : tensor<2xf32>, tensor<3xf32>
}

// CHECK-LABEL: func.func @static(
// CHECK-SAME:    {{%[a-z0-9]+}}: tensor<3xf32> {gradopt.storage = 0 : i64, iree.abi.output = 1 : index},
// CHECK-SAME:    {{%[a-z0-9]+}}: tensor<2xf32> {iree.abi.output = 0 : index},
// CHECK-SAME:    {{%[a-z0-9]+}}: !hal.buffer {iree.abi.transients})

// -----

// Only the temporaries.

func.func @temporaries(%x: tensor<3xf32>, %y: tensor<2xf32>)
    -> (tensor<2xf32>, tensor<3xf32>) attributes {gradopt.static_alloc = "temporaries"} {
  return %y, %x : tensor<2xf32>, tensor<3xf32>
}

// CHECK-LABEL: func.func @temporaries(%{{[a-z0-9]+}}: tensor<3xf32>, %{{[a-z0-9]+}}: tensor<2xf32>,
// CHECK-SAME:    {{%[a-z0-9]+}}: !hal.buffer {iree.abi.transients})
