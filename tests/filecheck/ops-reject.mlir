// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// RUN: gradopt-opt %s --split-input-file --verify-diagnostics

// What the verifier says: the op, what it expected, what it got, and what to do. Types, operands,
// results and attributes here; ops-shapes-reject.mlir and ops-products-reject.mlir go on by family.

// Elementwise ops: operands of one type.

func.func @f(%a: tensor<2xf32>, %b: tensor<3xf32>) {
  // expected-error@+1 {{'gradopt.add' op expected operands of one type, got tensor<2xf32> and tensor<3xf32>; broadcast or convert one of them}}
  %0 = "gradopt.add"(%a, %b) : (tensor<2xf32>, tensor<3xf32>) -> tensor<2xf32>
  return
}

// -----

func.func @f(%a: tensor<2xf32>, %b: tensor<2xf64>) {
  // expected-error@+1 {{'gradopt.mul' op expected operands of one type, got tensor<2xf32> and tensor<2xf64>; broadcast or convert one of them}}
  %0 = "gradopt.mul"(%a, %b) : (tensor<2xf32>, tensor<2xf64>) -> tensor<2xf32>
  return
}

// -----

func.func @f(%a: tensor<2xf32>) {
  // expected-error@+1 {{'gradopt.select' op expected a condition of type tensor<2xi1>, got tensor<2xf32>; broadcast or compare first}}
  %0 = "gradopt.select"(%a, %a, %a) : (tensor<2xf32>, tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  return
}

// -----

// Element types that an op does not take.

func.func @f(%a: tensor<2xi32>) {
  // expected-error@+1 {{'gradopt.exp' op expected floating-point operands, got tensor<2xi32>; convert them first}}
  %0 = "gradopt.exp"(%a) : (tensor<2xi32>) -> tensor<2xi32>
  return
}

// -----

func.func @f(%a: tensor<2xf32>) {
  // expected-error@+1 {{'gradopt.shift_left' op expected integer operands, got tensor<2xf32>; convert them first}}
  %0 = "gradopt.shift_left"(%a, %a) : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  return
}

// -----

func.func @f(%a: tensor<2xf32>) {
  // expected-error@+1 {{'gradopt.logical_not' op expected boolean operands, got tensor<2xf32>; convert them first}}
  %0 = "gradopt.logical_not"(%a) : (tensor<2xf32>) -> tensor<2xf32>
  return
}

// -----

func.func @f(%a: tensor<2xi32>) {
  // expected-error@+1 {{'gradopt.softmax' op expected a floating-point operand, got tensor<2xi32>; convert it first}}
  %0 = "gradopt.softmax"(%a) {axis = 0 : i64} : (tensor<2xi32>) -> tensor<2xi32>
  return
}

// -----

func.func @f(%a: tensor<2xf32>) {
  // expected-error@+1 {{'gradopt.bitcast' op expected element types of one width, got float32 and float64; use convert for values}}
  %0 = "gradopt.bitcast"(%a) {dtype = f64} : (tensor<2xf32>) -> tensor<2xf64>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error@+1 {{'gradopt.take' op expected integer indices, got tensor<4xf32>}}
  %0 = "gradopt.take"(%a, %a) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f() {
  // expected-error@+1 {{'gradopt.iota' op expected a numeric dtype, got bool}}
  %0 = "gradopt.iota"() {shape = array<i64: 2>, axis = 0 : i64, dtype = i1} : () -> tensor<2xi1>
  return
}

// -----

// Types that the dialect does not have.

func.func @f(%a: f32) {
  // expected-error@+1 {{expected a ranked tensor type, got f32}}
  %0 = "gradopt.neg"(%a) : (f32) -> f32
  return
}

// -----

func.func @f(%a: tensor<*xf32>) {
  // expected-error@+1 {{expected a ranked tensor type, got tensor<*xf32>}}
  %0 = "gradopt.exp"(%a) : (tensor<*xf32>) -> tensor<*xf32>
  return
}

// -----

func.func @f(%a: tensor<2xi4>) {
  // expected-error@+1 {{expected an element type out of f64, f32, f16, bf16, i64, i32, i16, i8, ui64, ui32, ui16, ui8, i1, got i4}}
  %0 = "gradopt.neg"(%a) : (tensor<2xi4>) -> tensor<2xi4>
  return
}

// -----

func.func @f(%a: tensor<2xf32>) {
  // expected-error@+1 {{'gradopt.convert' op attribute 'dtype': expected an element type out of f64, f32, f16, bf16, i64, i32, i16, i8, ui64, ui32, ui16, ui8, i1, got i4}}
  %0 = "gradopt.convert"(%a) {dtype = i4} : (tensor<2xf32>) -> tensor<2xi4>
  return
}

// -----

// Results must be what the operands and attributes say.

func.func @f(%a: tensor<2xf32>) {
  // expected-error@+1 {{'gradopt.exp' op expected result type tensor<2xf32>, got tensor<3xf32>}}
  %0 = "gradopt.exp"(%a) : (tensor<2xf32>) -> tensor<3xf32>
  return
}

// -----

func.func @f(%a: tensor<2xf32>) {
  // expected-error@+1 {{'gradopt.compare' op expected result type tensor<2xi1>, got tensor<2xf32>}}
  %0 = "gradopt.compare"(%a, %a) {direction = "lt"}
      : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  return
}

// -----

func.func @f(%a: tensor<2xf32>) {
  // expected-error@+1 {{'gradopt.exp' op expected result type tensor<2xf32>, got tensor<2xf32>, tensor<2xf32>}}
  %0:2 = "gradopt.exp"(%a) : (tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>)
  return
}

// -----

func.func @f(%a: tensor<2x3xf32>) {
  // expected-error@+1 {{'gradopt.unstack' op expected result type tensor<3xf32>, tensor<3xf32>, got tensor<3xf32>, tensor<3xf32>, tensor<3xf32>}}
  %0:3 = "gradopt.unstack"(%a) {axis = 0 : i64}
      : (tensor<2x3xf32>) -> (tensor<3xf32>, tensor<3xf32>, tensor<3xf32>)
  return
}

// -----

func.func @f() {
  // expected-error@+1 {{'gradopt.constant' op expected result type tensor<2xf32>, got tensor<3xf32>}}
  %0 = "gradopt.constant"() {value = dense<1.0> : tensor<2xf32>} : () -> tensor<3xf32>
  return
}

// -----

// Numbers of operands.

func.func @f(%a: tensor<2xf32>) {
  // expected-error@+1 {{'gradopt.exp' op expected operands (x), got 2 of them}}
  %0 = "gradopt.exp"(%a, %a) : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  return
}

// -----

func.func @f(%a: tensor<2xf32>) {
  // expected-error@+1 {{'gradopt.add' op expected operands (lhs, rhs), got 1 of them}}
  %0 = "gradopt.add"(%a) : (tensor<2xf32>) -> tensor<2xf32>
  return
}

// -----

func.func @f() {
  // expected-error@+1 {{'gradopt.stack' op expected one or more operands of one type, got none}}
  %0 = "gradopt.stack"() {axis = 0 : i64} : () -> tensor<2x2xf32>
  return
}

// -----

// Attributes: missing, unknown, of another kind, of no such value.

func.func @f(%a: tensor<2xf32>) {
  // expected-error@+1 {{'gradopt.sum' op expected attribute 'axes', got none; write {axes = array<i64: 0, 1>}}}
  %0 = "gradopt.sum"(%a) : (tensor<2xf32>) -> tensor<f32>
  return
}

// -----

func.func @f(%a: tensor<2xf32>) {
  // expected-error@+1 {{'gradopt.sum' op expected attributes out of: axes, got 'keepdims'}}
  %0 = "gradopt.sum"(%a) {axes = array<i64: 0>, keepdims = true} : (tensor<2xf32>) -> tensor<f32>
  return
}

// -----

func.func @f(%a: tensor<2xf32>) {
  // expected-error@+1 {{'gradopt.exp' op expected attributes out of: none, got 'fast'}}
  %0 = "gradopt.exp"(%a) {fast} : (tensor<2xf32>) -> tensor<2xf32>
  return
}

// -----

func.func @f(%a: tensor<2xf32>) {
  // expected-error@+1 {{'gradopt.sum' op attribute 'axes': expected an attribute like array<i64: 0, 1>, got [0]}}
  %0 = "gradopt.sum"(%a) {axes = [0]} : (tensor<2xf32>) -> tensor<f32>
  return
}

// -----

func.func @f(%a: tensor<2xf32>) {
  // expected-error@+1 {{'gradopt.sum' op attribute 'axes': expected an attribute like array<i64: 0, 1>, got array<i32: 0>}}
  %0 = "gradopt.sum"(%a) {axes = array<i32: 0>} : (tensor<2xf32>) -> tensor<f32>
  return
}

// -----

func.func @f(%a: tensor<2x3xf32>) {
  // expected-error@+1 {{'gradopt.softmax' op attribute 'axis': expected an attribute like 3 : i64, got 1.000000e+00 : f32}}
  %0 = "gradopt.softmax"(%a) {axis = 1.0 : f32} : (tensor<2x3xf32>) -> tensor<2x3xf32>
  return
}

// -----

func.func @f(%a: tensor<2xf32>) {
  // expected-error@+1 {{'gradopt.compare' op attribute 'direction': expected an attribute like "text", got 1 : i64}}
  %0 = "gradopt.compare"(%a, %a) {direction = 1 : i64}
      : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xi1>
  return
}

// -----

func.func @f() {
  // expected-error@+1 {{'gradopt.constant' op attribute 'value': expected an attribute like dense<0.0> : tensor<2xf32>, got 1.000000e+00 : f32}}
  %0 = "gradopt.constant"() {value = 1.0 : f32} : () -> tensor<f32>
  return
}

// -----

func.func @f(%a: tensor<2xf32>) {
  // expected-error@+1 {{'gradopt.compare' op expected a direction out of eq, ne, lt, le, gt, ge, got 'equal'}}
  %0 = "gradopt.compare"(%a, %a) {direction = "equal"}
      : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xi1>
  return
}
