// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// RUN: gradopt-opt %s --gradopt-unroll-scans --split-input-file --verify-diagnostics

func.func private @step(%c: tensor<2xf32>) -> tensor<f32> {
  %s = "gradopt.sum"(%c) {axes = array<i64: 0>} : (tensor<2xf32>) -> tensor<f32>
  return %s : tensor<f32>
}
func.func @changes(%c: tensor<2xf32>) {
  // expected-error @below {{'gradopt.scan' op expected @step to give the carry that it takes, (tensor<2xf32>), got (tensor<f32>)}}
  %f = "gradopt.scan"() {callee = @step, length = 3 : i64, carries = 1 : i64, xs = 0 : i64} : () -> ((tensor<2xf32>) -> tensor<f32>)
  return
}

// -----

func.func private @step(%c: tensor<2xf32>) -> tensor<2xf32> {
  return %c : tensor<2xf32>
}
func.func @many() {
  // expected-error @below {{'gradopt.scan' op expected carries and xs among the 1 inputs of @step, got 1 and 1}}
  %f = "gradopt.scan"() {callee = @step, length = 3 : i64, carries = 1 : i64, xs = 1 : i64} : () -> ((tensor<2xf32>) -> tensor<2xf32>)
  return
}
