// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// RUN: gradopt-opt %s --split-input-file --verify-diagnostics

// What the verifier says of gradopt.vjp and gradopt.jvp.

// Derivatives: a function that is not there.

func.func private @f(%x: tensor<3xf32>, %n: tensor<3xi32>) -> tensor<3xf32> {
  return %x : tensor<3xf32>
}

func.func @g() {
  // expected-error@+1 {{'gradopt.vjp' op expected a function out of @f, @g, got @loss}}
  %0 = "gradopt.vjp"() {callee = @loss, wrt = array<i64: 0>} : () -> (() -> ())
  return
}

// -----

// Positions of inputs and results.

func.func private @f(%x: tensor<3xf32>, %n: tensor<3xi32>) -> tensor<3xf32> {
  return %x : tensor<3xf32>
}

func.func @g() {
  // expected-error@+1 {{'gradopt.vjp' op expected distinct positions of the 2 inputs of @f, got [2]}}
  %0 = "gradopt.vjp"() {callee = @f, wrt = array<i64: 2>} : () -> (() -> ())
  return
}

// -----

func.func private @f(%x: tensor<3xf32>, %n: tensor<3xi32>) -> tensor<3xf32> {
  return %x : tensor<3xf32>
}

func.func @g() {
  // expected-error@+1 {{'gradopt.vjp' op expected distinct positions of the 2 inputs of @f, got [0, 0]}}
  %0 = "gradopt.vjp"() {callee = @f, wrt = array<i64: 0, 0>} : () -> (() -> ())
  return
}

// -----

func.func private @f(%x: tensor<3xf32>, %n: tensor<3xi32>) -> tensor<3xf32> {
  return %x : tensor<3xf32>
}

func.func @g() {
  // expected-error@+1 {{'gradopt.vjp' op expected distinct positions of the 1 results of @f, got [1]}}
  %0 = "gradopt.vjp"() {callee = @f, wrt = array<i64: 0>, heads = array<i64: 1>} : () -> (() -> ())
  return
}

// -----

// B56: what has no gradient, in both modes.

func.func private @f(%x: tensor<3xf32>, %n: tensor<3xi32> {gradopt.name = "n"}) -> tensor<3xf32> {
  return %x : tensor<3xf32>
}

func.func @g() {
  // expected-error@+1 {{'gradopt.vjp' op expected floating-point inputs, got input 'n' of @f with dtype int32; integers and booleans have no gradient}}
  %0 = "gradopt.vjp"() {callee = @f, wrt = array<i64: 1>} : () -> (() -> ())
  return
}

// -----

func.func private @f(%x: tensor<3xf32>, %n: tensor<3xi1>) -> tensor<3xf32> {
  return %x : tensor<3xf32>
}

func.func @g() {
  // expected-error@+1 {{'gradopt.jvp' op expected floating-point inputs, got input '1' of @f with dtype bool; integers and booleans have no gradient}}
  %0 = "gradopt.jvp"() {callee = @f, wrt = array<i64: 1>} : () -> (() -> ())
  return
}

// -----

func.func private @rounded(%x: tensor<3xf32>) -> tensor<3xi32> {
  %0 = "gradopt.convert"(%x) {dtype = i32} : (tensor<3xf32>) -> tensor<3xi32>
  return %0 : tensor<3xi32>
}

func.func @g() {
  // expected-error@+1 {{'gradopt.vjp' op expected a floating-point result to differentiate, got tensor<3xi32>}}
  %0 = "gradopt.vjp"() {callee = @rounded, wrt = array<i64: 0>} : () -> (() -> ())
  return
}

// -----

func.func private @rounded(%x: tensor<3xf32>) -> tensor<3xi32> {
  %0 = "gradopt.convert"(%x) {dtype = i32} : (tensor<3xf32>) -> tensor<3xi32>
  return %0 : tensor<3xi32>
}

func.func @g() {
  // expected-error@+1 {{'gradopt.vjp' op expected floating-point results, got result '0' of @rounded with dtype int32; integers and booleans have no gradient}}
  %0 = "gradopt.vjp"() {callee = @rounded, wrt = array<i64: 0>, heads = array<i64: 0>} : () -> (() -> ())
  return
}

// -----

// A function of something else than tensors.

func.func private @scalar(%i: index) -> index {
  return %i : index
}

func.func @g() {
  // expected-error@+1 {{expected a ranked tensor type, got index}}
  %0 = "gradopt.vjp"() {callee = @scalar, wrt = array<i64: 0>} : () -> (() -> ())
  return
}

// -----

// The type of the derivative.

func.func private @f(%x: tensor<3xf32>, %n: tensor<3xi32>) -> tensor<3xf32> {
  return %x : tensor<3xf32>
}

func.func @g() {
  // expected-error@+1 {{'gradopt.vjp' op expected result type (tensor<3xf32>, tensor<3xi32>, tensor<3xf32>) -> (tensor<3xf32>, tensor<3xf32>), got () -> ()}}
  %0 = "gradopt.vjp"() {callee = @f, wrt = array<i64: 0>} : () -> (() -> ())
  return
}

// -----

func.func private @f(%x: tensor<3xf32>, %n: tensor<3xi32>) -> tensor<3xf32> {
  return %x : tensor<3xf32>
}

func.func @g() {
  // expected-error@+1 {{'gradopt.jvp' op expected result type (tensor<3xf32>, tensor<3xi32>, tensor<3xf32>) -> (tensor<3xf32>, tensor<3xf32>), got tensor<3xf32>}}
  %0 = "gradopt.jvp"() {callee = @f, wrt = array<i64: 0>} : () -> tensor<3xf32>
  return
}

// -----

// Attributes of derivatives.

func.func private @f(%x: tensor<3xf32>, %n: tensor<3xi32>) -> tensor<3xf32> {
  return %x : tensor<3xf32>
}

func.func @g() {
  // expected-error@+1 {{'gradopt.vjp' op expected attribute 'wrt', got none; write {wrt = array<i64: 0, 1>}}}
  %0 = "gradopt.vjp"() {callee = @f} : () -> (() -> ())
  return
}

// -----

func.func private @f(%x: tensor<3xf32>, %n: tensor<3xi32>) -> tensor<3xf32> {
  return %x : tensor<3xf32>
}

func.func @g() {
  // expected-error@+1 {{'gradopt.vjp' op attribute 'callee': expected an attribute like @name, got "f"}}
  %0 = "gradopt.vjp"() {callee = "f", wrt = array<i64: 0>} : () -> (() -> ())
  return
}

// -----

func.func private @f(%x: tensor<3xf32>, %n: tensor<3xi32>) -> tensor<3xf32> {
  return %x : tensor<3xf32>
}

func.func @g() {
  // expected-error@+1 {{'gradopt.vjp' op expected unreachable to be 'error' or 'zeros', got 'zero'}}
  %0 = "gradopt.vjp"() {callee = @f, wrt = array<i64: 0>, unreachable = "zero"} : () -> (() -> ())
  return
}

// -----

func.func private @f(%x: tensor<3xf32>, %n: tensor<3xi32>) -> tensor<3xf32> {
  return %x : tensor<3xf32>
}

func.func @g() {
  // expected-error@+1 {{'gradopt.vjp' op expected attributes out of: callee, wrt, heads, unreachable, intermediates, got 'head'}}
  %0 = "gradopt.vjp"() {callee = @f, wrt = array<i64: 0>, head = 0 : i64} : () -> (() -> ())
  return
}
