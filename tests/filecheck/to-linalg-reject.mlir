// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// RUN: gradopt-opt %s --split-input-file --verify-diagnostics --convert-gradopt-to-linalg

// Derivatives have to be written out first. All faults are told at once.

!v = tensor<3xf32>
!dv = (!v, !v) -> (!v, !v)

func.func private @f(%x: !v) -> !v {
  return %x : !v
}

func.func @not_expanded(%x: !v) -> !v {
  // expected-error@+1 {{'gradopt.vjp' op has to be expanded first; run gradopt-differentiate}}
  %f = "gradopt.vjp"() {callee = @f, wrt = array<i64: 0>} : () -> !dv
  %r:2 = call_indirect %f(%x, %x) : !dv
  // expected-error@+1 {{'gradopt.jvp' op has to be expanded first; run gradopt-differentiate}}
  %g = "gradopt.jvp"() {callee = @f, wrt = array<i64: 0>} : () -> !dv
  %s:2 = call_indirect %g(%x, %r#1) : !dv
  return %s#1 : !v
}

// -----

// Ops in regions and in nested modules are not lowered.

!v = tensor<3xf32>

func.func @in_a_region(%x: !v, %c: i1) -> !v {
  %r = scf.if %c -> (!v) {
    // expected-error@+1 {{'gradopt.sin' op expected to stand in a function of the outermost module, got it in 'scf.if'}}
    %y = "gradopt.sin"(%x) : (!v) -> !v
    scf.yield %y : !v
  } else {
    scf.yield %x : !v
  }
  return %r : !v
}

module @inner {
  func.func @in_a_module(%x: tensor<3xf32>) -> tensor<3xf32> {
    // expected-error@+1 {{'gradopt.cos' op expected to stand in a function of the outermost module, got it in 'func.func'}}
    %y = "gradopt.cos"(%x) : (tensor<3xf32>) -> tensor<3xf32>
    return %y : tensor<3xf32>
  }
}
