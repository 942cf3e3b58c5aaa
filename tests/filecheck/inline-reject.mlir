// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// RUN: gradopt-opt %s --split-input-file --verify-diagnostics --gradopt-inline

// A function that calls itself.

!v = tensor<3xf32>

// expected-error@+1 {{expected no recursion, got @f -> @f; unroll it}}
func.func @f(%x: !v) -> !v {
  %0 = call @f(%x) : (!v) -> !v
  return %0 : !v
}

// -----

// Through another one.

!v = tensor<3xf32>

// expected-error@+1 {{expected no recursion, got @g -> @h -> @g; unroll it}}
func.func @g(%x: !v) -> !v {
  %0 = call @h(%x) : (!v) -> !v
  return %0 : !v
}

func.func @h(%x: !v) -> !v {
  %0 = call @g(%x) : (!v) -> !v
  return %0 : !v
}
