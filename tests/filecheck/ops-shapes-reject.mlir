// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// RUN: gradopt-opt %s --split-input-file --verify-diagnostics

// What the verifier says of reductions, shapes, joins, cuts and indexing.

// Reductions.

func.func @f(%a: tensor<2x3xf32>) {
  // expected-error@+1 {{'gradopt.sum' op expected increasing axes of a tensor of rank 2, got [2]}}
  %0 = "gradopt.sum"(%a) {axes = array<i64: 2>} : (tensor<2x3xf32>) -> tensor<2xf32>
  return
}

// -----

func.func @f(%a: tensor<2x3xf32>) {
  // expected-error@+1 {{'gradopt.sum' op expected increasing axes of a tensor of rank 2, got [-1]}}
  %0 = "gradopt.sum"(%a) {axes = array<i64: -1>} : (tensor<2x3xf32>) -> tensor<2xf32>
  return
}

// -----

func.func @f(%a: tensor<2x3xf32>) {
  // expected-error@+1 {{'gradopt.sum' op expected increasing axes of a tensor of rank 2, got [1, 0]}}
  %0 = "gradopt.sum"(%a) {axes = array<i64: 1, 0>} : (tensor<2x3xf32>) -> tensor<f32>
  return
}

// -----

func.func @f(%a: tensor<0x3xf32>) {
  // expected-error@+1 {{'gradopt.max' op expected at least one element to reduce, got tensor<0x3xf32>; an empty reduction has no value}}
  %0 = "gradopt.max"(%a) {axes = array<i64: 0>} : (tensor<0x3xf32>) -> tensor<3xf32>
  return
}

// -----

func.func @f(%a: tensor<2x3xf32>) {
  // expected-error@+1 {{'gradopt.argmax' op expected an axis of a tensor of rank 2, got 2}}
  %0 = "gradopt.argmax"(%a) {axis = 2 : i64} : (tensor<2x3xf32>) -> tensor<2xi32>
  return
}

// -----

// Shapes.

func.func @f(%a: tensor<2x3xf32>) {
  // expected-error@+1 {{'gradopt.reshape' op expected a shape of 6 elements, got tensor<5xf32>}}
  %0 = "gradopt.reshape"(%a) {shape = array<i64: 5>} : (tensor<2x3xf32>) -> tensor<5xf32>
  return
}

// -----

func.func @f(%a: tensor<?x?xf32>) {
  // expected-error@+1 {{'gradopt.reshape' op expected at most one unknown extent, got tensor<?x?xf32>; give an operand `like` of that shape}}
  %0 = "gradopt.reshape"(%a) {shape = array<i64: -9223372036854775808, -9223372036854775808>}
      : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return
}

// -----

func.func @f(%a: tensor<2x3xf32>) {
  // expected-error@+1 {{'gradopt.transpose' op expected a permutation of the 2 axes of tensor<2x3xf32>, got [0, 0]}}
  %0 = "gradopt.transpose"(%a) {permutation = array<i64: 0, 0>}
      : (tensor<2x3xf32>) -> tensor<2x3xf32>
  return
}

// -----

func.func @f(%a: tensor<3xf32>) {
  // expected-error@+1 {{'gradopt.broadcast' op expected dims to give each axis of tensor<3xf32> an axis of tensor<2x3xf32>, increasing, got [0, 1]}}
  %0 = "gradopt.broadcast"(%a) {shape = array<i64: 2, 3>, dims = array<i64: 0, 1>}
      : (tensor<3xf32>) -> tensor<2x3xf32>
  return
}

// -----

func.func @f(%a: tensor<3xf32>) {
  // expected-error@+1 {{'gradopt.broadcast' op expected axis 0 of tensor<3xf32> to be 1 or that of the result, got tensor<2x4xf32>}}
  %0 = "gradopt.broadcast"(%a) {shape = array<i64: 2, 4>, dims = array<i64: 1>}
      : (tensor<3xf32>) -> tensor<2x4xf32>
  return
}

// -----

func.func @f(%a: tensor<3xf32>) {
  // expected-error@+1 {{'gradopt.broadcast' op expected an operand `like` with an unknown extent 0, got tensor<?x3xf32>}}
  %0 = "gradopt.broadcast"(%a) {shape = array<i64: -9223372036854775808, 3>, dims = array<i64: 1>}
      : (tensor<3xf32>) -> tensor<?x3xf32>
  return
}

// -----

// Joining and cutting.

func.func @f(%a: tensor<2x3xf32>, %b: tensor<2x4xf32>) {
  // expected-error@+1 {{'gradopt.concat' op expected operands equal but for axis 0, got tensor<2x3xf32> and tensor<2x4xf32>}}
  %0 = "gradopt.concat"(%a, %b) {axis = 0 : i64}
      : (tensor<2x3xf32>, tensor<2x4xf32>) -> tensor<4x3xf32>
  return
}

// -----

func.func @f(%a: tensor<2x3xf32>) {
  // expected-error@+1 {{'gradopt.concat' op expected an axis in [0, 2), got 2}}
  %0 = "gradopt.concat"(%a, %a) {axis = 2 : i64}
      : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<4x3xf32>
  return
}

// -----

func.func @f(%a: tensor<2xf32>, %b: tensor<3xf32>) {
  // expected-error@+1 {{'gradopt.stack' op expected one or more operands of one type, got tensor<2xf32>, tensor<3xf32>}}
  %0 = "gradopt.stack"(%a, %b) {axis = 0 : i64} : (tensor<2xf32>, tensor<3xf32>) -> tensor<2x2xf32>
  return
}

// -----

func.func @f(%a: tensor<?x3xf32>) {
  // expected-error@+1 {{'gradopt.unstack' op expected an axis with a known extent of at least 1, got axis 0 of tensor<?x3xf32>}}
  %0:1 = "gradopt.unstack"(%a) {axis = 0 : i64} : (tensor<?x3xf32>) -> (tensor<3xf32>)
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error@+1 {{'gradopt.slice' op expected 0 <= start <= limit <= 4 on axis 0, got 1:5}}
  %0 = "gradopt.slice"(%a) {start = array<i64: 1>, limit = array<i64: 5>, stride = array<i64: 1>}
      : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error@+1 {{'gradopt.slice' op expected strides of at least 1, got -1; reverse the axis first for a negative stride}}
  %0 = "gradopt.slice"(%a) {start = array<i64: 0>, limit = array<i64: 4>, stride = array<i64: -1>}
      : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error@+1 {{'gradopt.slice' op expected start, limit and stride of length 1, got 2, 1 and 1}}
  %0 = "gradopt.slice"(%a) {start = array<i64: 0, 0>, limit = array<i64: 4>, stride = array<i64: 1>}
      : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a: tensor<?xf32>) {
  // expected-error@+1 {{'gradopt.slice' op expected axis 0, whose extent is unknown, to be kept whole, got 1:4:1}}
  %0 = "gradopt.slice"(%a) {start = array<i64: 1>, limit = array<i64: 4>, stride = array<i64: 1>}
      : (tensor<?xf32>) -> tensor<3xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error@+1 {{'gradopt.pad' op expected no negative padding, got low (-1,)}}
  %0 = "gradopt.pad"(%a) {low = array<i64: -1>, high = array<i64: 0>, interior = array<i64: 0>}
      : (tensor<4xf32>) -> tensor<3xf32>
  return
}

// -----

func.func @f(%a: tensor<?xf32>) {
  // expected-error@+1 {{'gradopt.pad' op expected no padding on axes of unknown extent, got low (1,), high (0,) of tensor<?xf32>}}
  %0 = "gradopt.pad"(%a) {low = array<i64: 1>, high = array<i64: 0>, interior = array<i64: 0>}
      : (tensor<?xf32>) -> tensor<?xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error@+1 {{'gradopt.reverse' op expected increasing axes of a tensor of rank 1, got [1]}}
  %0 = "gradopt.reverse"(%a) {axes = array<i64: 1>} : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

// Indexing.

func.func @f(%a: tensor<?x4xf32>, %b: tensor<2xi32>) {
  // expected-error@+1 {{'gradopt.take' op expected a known extent of at least 1 on axis 0, got tensor<?x4xf32>}}
  %0 = "gradopt.take"(%a, %b) : (tensor<?x4xf32>, tensor<2xi32>) -> tensor<2x4xf32>
  return
}

// -----

func.func @f(%a: tensor<5x4xf32>, %b: tensor<2xi32>) {
  // expected-error@+1 {{'gradopt.scatter_add' op expected updates of type tensor<2x4xf32>, got tensor<5x4xf32>}}
  %0 = "gradopt.scatter_add"(%a, %b, %a)
      : (tensor<5x4xf32>, tensor<2xi32>, tensor<5x4xf32>) -> tensor<5x4xf32>
  return
}

// -----

func.func @f() {
  // expected-error@+1 {{'gradopt.iota' op expected an axis in [0, 1), got 1}}
  %0 = "gradopt.iota"() {shape = array<i64: 2>, axis = 1 : i64, dtype = i32} : () -> tensor<2xi32>
  return
}
