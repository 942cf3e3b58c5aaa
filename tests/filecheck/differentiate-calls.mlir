// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// RUN: gradopt-opt %s --split-input-file --gradopt-differentiate | filecheck %s

// B17: a function marked gradopt.compiled is derived once for its two calls. Its backward gives the
// contributions to gradients; the caller adds them up.

!v = tensor<4xf32>

func.func private @f(%x: !v {gradopt.name = "x"}, %y: !v {gradopt.name = "y"}) -> !v attributes {gradopt.compiled} {
  %0 = "gradopt.sin"(%x) : (!v) -> !v
  %1 = "gradopt.mul"(%0, %y) : (!v, !v) -> !v
  return %1 : !v
}

func.func private @twice(%x: !v, %y: !v) -> !v {
  %0 = func.call @f(%x, %y) : (!v, !v) -> !v
  %1 = func.call @f(%0, %y) : (!v, !v) -> !v
  return %1 : !v
}

func.func @main(%x: !v, %y: !v, %ct: !v) -> (!v, !v) {
  %d = "gradopt.vjp"() {callee = @twice, wrt = array<i64: 0, 1>} : () -> ((!v, !v, !v) -> (!v, !v, !v))
  %r:3 = func.call_indirect %d(%x, %y, %ct) : (!v, !v, !v) -> (!v, !v, !v)
  return %r#1, %r#2 : !v, !v
}

// CHECK-LABEL: func.func private @twice_vjp(
// CHECK:         %[[A:.*]]:2 = call @f_forward(%arg0, %arg1)
// CHECK:         %[[B:.*]]:2 = call @f_forward(%[[A]]#0, %arg1)
// CHECK:         %[[C:.*]]:2 = call @f_backward(%arg1, %[[B]]#1, %[[A]]#0, %arg2)
// CHECK:         %[[D:.*]]:2 = call @f_backward(%arg1, %[[A]]#1, %arg0, %[[C]]#1)
// CHECK:         %[[E:.*]] = "gradopt.add"(%[[C]]#0, %[[D]]#0)
// CHECK:         return %[[B]]#0, %[[D]]#1, %[[E]]
// CHECK-LABEL: func.func private @f_forward(
// CHECK-SAME:    attributes {gradopt.compiled}
// CHECK:         %[[S:.*]] = "gradopt.sin"
// CHECK:         %[[M:.*]] = "gradopt.mul"
// CHECK:         return %[[M]], %[[S]]
// CHECK-LABEL: func.func private @f_backward(
// CHECK-NOT:     "gradopt.sin"
// CHECK:         "gradopt.cos"
// CHECK:         return

// -----

// What is differentiated by, and which results have a cotangent, make pairs of their own; a call
// that contributes nothing stays as it is.

!v = tensor<4xf32>

func.func private @g(%x: !v, %y: !v) -> (!v, !v) attributes {gradopt.compiled} {
  %0 = "gradopt.exp"(%x) : (!v) -> !v
  %1 = "gradopt.tanh"(%y) : (!v) -> !v
  return %0, %1 : !v, !v
}

func.func private @mixed(%x: !v, %c: !v) -> !v {
  %0:2 = func.call @g(%x, %c) : (!v, !v) -> (!v, !v)
  %1:2 = func.call @g(%c, %0#0) : (!v, !v) -> (!v, !v)
  %2:2 = func.call @g(%c, %c) : (!v, !v) -> (!v, !v)
  %3 = "gradopt.add"(%1#1, %2#0) : (!v, !v) -> !v
  return %3 : !v
}

func.func @main(%x: !v, %c: !v, %ct: !v) -> !v {
  %d = "gradopt.vjp"() {callee = @mixed, wrt = array<i64: 0>} : () -> ((!v, !v, !v) -> (!v, !v))
  %r:2 = func.call_indirect %d(%x, %c, %ct) : (!v, !v, !v) -> (!v, !v)
  return %r#1 : !v
}

// CHECK-LABEL: func.func private @mixed_vjp(
// CHECK:         %[[A:.*]]:2 = call @g_forward_(%arg0, %arg1)
// CHECK:         %[[B:.*]]:2 = call @g_forward(%arg1, %[[A]]#0)
// CHECK:         %{{.*}}:2 = call @g(%arg1, %arg1)
// CHECK:         %[[C:.*]] = call @g_backward(%[[B]]#1, %arg2)
// CHECK:         %[[D:.*]] = call @g_backward_(%[[A]]#0, %[[C]])
// CHECK:         return %{{.*}}, %[[D]]
