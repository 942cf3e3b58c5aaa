// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// RUN: gradopt-opt %s --split-input-file --verify-diagnostics --gradopt-choose-forms

func.func @f(%x: tensor<64x4xf32>) -> tensor<4xf32> {
  // expected-error @+1 {{'gradopt.sum' op expected gradopt.form to be one of whole, split-16, got 'split-64'}}
  %y = "gradopt.sum"(%x) {axes = array<i64: 0>, gradopt.form = "split-64"} : (tensor<64x4xf32>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}

// -----

func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @+1 {{'gradopt.exp' op expected gradopt.form on ops that have forms only, got 'fast'}}
  %y = "gradopt.exp"(%x) {gradopt.form = "fast"} : (tensor<4xf32>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}
