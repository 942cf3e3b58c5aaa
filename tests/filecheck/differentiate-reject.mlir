// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// RUN: gradopt-opt %s --split-input-file --verify-diagnostics --gradopt-differentiate

// B51: an input that no result depends on, by its name.

!v = tensor<3xf32>
!dv = (!v, !v, !v) -> (!v, !v, !v)

func.func private @f(%x: !v {gradopt.name = "x"}, %y: !v {gradopt.name = "y"}) -> !v {
  %0 = "gradopt.exp"(%x) : (!v) -> !v
  return %0 : !v
}

func.func @unreachable(%x: !v, %y: !v, %ct: !v) -> !v {
  // expected-error@+1 {{'gradopt.vjp' op expected results of @f that depend on every input to differentiate, got unreachable 'y'; leave it out, or ask for zeros with unreachable = "zeros" (allow_unused=True in Python)}}
  %f = "gradopt.vjp"() {callee = @f, wrt = array<i64: 0, 1>} : () -> !dv
  %r:3 = call_indirect %f(%x, %y, %ct) : !dv
  return %r#2 : !v
}

// -----

// B51: reached by another result than the chosen head.

!v = tensor<3xf32>
!dv = (!v, !v, !v) -> (!v, !v, !v)

func.func private @f(%x: !v, %y: !v) -> (!v, !v) {
  return %x, %y : !v, !v
}

func.func @unreachable_from_head(%x: !v, %y: !v, %ct: !v) -> !v {
  // expected-error@+1 {{got unreachable '1'}}
  %f = "gradopt.vjp"() {callee = @f, wrt = array<i64: 1>, heads = array<i64: 0>} : () -> !dv
  %r:3 = call_indirect %f(%x, %y, %ct) : !dv
  return %r#2 : !v
}

// -----

// B56: an integer input has no gradient.

!v = tensor<3xf32>
!i = tensor<3xi32>

func.func private @f(%x: !v, %n: !i {gradopt.name = "n"}) -> !v {
  return %x : !v
}

func.func @integer_input(%x: !v, %n: !i, %ct: !v) -> !i {
  // expected-error@+1 {{'gradopt.vjp' op expected floating-point inputs, got input 'n' of @f with dtype int32; integers and booleans have no gradient}}
  %f = "gradopt.vjp"() {callee = @f, wrt = array<i64: 1>} : () -> ((!v, !i, !v) -> (!v, !i))
  %r:2 = call_indirect %f(%x, %n, %ct) : (!v, !i, !v) -> (!v, !i)
  return %r#1 : !i
}

// -----

// B53: all ops without a rule that a cotangent reaches, each at its place; those that none reaches
// are no fault.

!v = tensor<3xf32>
!dv = (!v, !v) -> (!v, !v)

func.func private @h(%x: !v) -> !v

func.func private @f(%x: !v) -> !v {
  // expected-error@+1 {{'math.exp' op expected a gradient rule, got none; define `vjp` on its class, or keep it out with stop_gradient}}
  %0 = math.exp %x : !v
  %1 = math.sin %x : !v
  // expected-error@+1 {{'func.call' op expected a gradient rule, got none}}
  %2 = call @h(%0) : (!v) -> !v
  return %2 : !v
}

func.func @no_rule(%x: !v, %ct: !v) -> !v {
  %f = "gradopt.vjp"() {callee = @f, wrt = array<i64: 0>} : () -> !dv
  %r:2 = call_indirect %f(%x, %ct) : !dv
  return %r#1 : !v
}

// -----

// An op whose rule needs an extent that is not known.

!v = tensor<?xf32>
!s = tensor<f32>
!dv = (!v, !s) -> (!s, !v)

func.func private @f(%x: !v) -> !s {
  // expected-error@+1 {{'gradopt.prod' op expected a known extent of reduced axes for a gradient, got tensor<?xf32>; declare the extent}}
  %0 = "gradopt.prod"(%x) {axes = array<i64: 0>} : (!v) -> !s
  return %0 : !s
}

func.func @unknown_extent(%x: !v, %ct: !s) -> !v {
  %f = "gradopt.vjp"() {callee = @f, wrt = array<i64: 0>} : () -> !dv
  %r:2 = call_indirect %f(%x, %ct) : !dv
  return %r#1 : !v
}

// -----

// A function that calls itself, through another one.

!v = tensor<3xf32>
!dv = (!v, !v) -> (!v, !v)

// expected-error@+1 {{expected no recursion, got @f -> @g -> @f}}
func.func private @f(%x: !v) -> !v {
  %0 = call @g(%x) : (!v) -> !v
  return %0 : !v
}

func.func private @g(%x: !v) -> !v {
  %0 = call @f(%x) : (!v) -> !v
  return %0 : !v
}

func.func @calls_itself(%x: !v, %ct: !v) -> !v {
  %f = "gradopt.vjp"() {callee = @f, wrt = array<i64: 0>} : () -> !dv
  %r:2 = call_indirect %f(%x, %ct) : !dv
  return %r#1 : !v
}

// -----

// A function that asks for its own derivative.

!v = tensor<3xf32>
!dv = (!v, !v) -> (!v, !v)

// expected-error@+1 {{expected no recursion, got @f -> @f}}
func.func @f(%x: !v) -> !v {
  %f = "gradopt.vjp"() {callee = @f, wrt = array<i64: 0>} : () -> !dv
  %r:2 = call_indirect %f(%x, %x) : !dv
  return %r#1 : !v
}

// -----

// A path through numbers that are no tensors is a path.

!s = tensor<f32>

func.func private @f(%x: !s) -> !s {
  %e = tensor.extract %x[] : !s
  // expected-error@+1 {{'tensor.from_elements' op expected a gradient rule, got none}}
  %t = tensor.from_elements %e : !s
  %y = "gradopt.add"(%t, %x) : (!s, !s) -> !s
  return %y : !s
}

func.func @through_numbers(%x: !s) -> !s {
  %f = "gradopt.vjp"() {callee = @f, wrt = array<i64: 0>} : () -> ((!s, !s) -> (!s, !s))
  %r:2 = call_indirect %f(%x, %x) : (!s, !s) -> (!s, !s)
  return %r#1 : !s
}

// -----

// So is one through what the regions of an op read.

!v = tensor<3xf32>

func.func private @f(%x: !v, %t: tensor<i1>) -> !v {
  %c = tensor.extract %t[] : tensor<i1>
  // expected-error@+1 {{'scf.if' op expected a gradient rule, got none}}
  %r = scf.if %c -> (!v) { scf.yield %x : !v } else { scf.yield %x : !v }
  %y = "gradopt.mul"(%r, %x) : (!v, !v) -> !v
  return %y : !v
}

func.func @through_regions(%x: !v, %c: tensor<i1>) -> !v {
  %f = "gradopt.vjp"() {callee = @f, wrt = array<i64: 0>}
      : () -> ((!v, tensor<i1>, !v) -> (!v, !v))
  %r:2 = call_indirect %f(%x, %c, %x) : (!v, tensor<i1>, !v) -> (!v, !v)
  return %r#1 : !v
}
