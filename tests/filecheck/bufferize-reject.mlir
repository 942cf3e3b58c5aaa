// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// RUN: gradopt-opt %s --split-input-file --verify-diagnostics --gradopt-bufferize

// A donated input names a result that is not there.

!v = tensor<3xf32>

// expected-error@+1 {{expected gradopt.donated of argument 0 to name a result of its own of type tensor<3xf32>, got 1}}
func.func @no_such_result(%x: !v {gradopt.donated = 1 : i64}) -> !v {
  %0 = math.exp %x : !v
  return %0 : !v
}

// -----

// A result of another type.

!v = tensor<3xf32>

// expected-error@+1 {{expected gradopt.donated of argument 1 to name a result of its own of type tensor<3xf32>, got 0}}
func.func @another_type(%w: tensor<2xf32>, %x: !v {gradopt.donated = 0 : i64}) -> tensor<2xf32> {
  %0 = math.exp %w : tensor<2xf32>
  return %0 : tensor<2xf32>
}

// -----

// One result for two inputs.

!v = tensor<3xf32>

// expected-error@+1 {{expected gradopt.donated of argument 0 to name a result of its own of type tensor<3xf32>, got 0}}
func.func @same_result(%x: !v {gradopt.donated = 0 : i64}, %y: !v {gradopt.donated = 0 : i64})
    -> !v {
  %0 = arith.addf %x, %y : !v
  return %0 : !v
}
