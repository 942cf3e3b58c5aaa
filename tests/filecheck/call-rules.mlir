// RUN: gradopt-opt %s --gradopt-differentiate --gradopt-inline --symbol-dce --gradopt-simplify --split-input-file | filecheck %s

// A function that says how it is differentiated: forward and backward are used, B57.
func.func private @f(%x: tensor<f32>) -> tensor<f32>
    attributes {gradopt.custom_vjp = {forward = @forward, backward = @backward}} {
  %y = "gradopt.square"(%x) : (tensor<f32>) -> tensor<f32>
  return %y : tensor<f32>
}
func.func private @forward(%x: tensor<f32>) -> (tensor<f32>, tensor<f32>) {
  %y = "gradopt.square"(%x) : (tensor<f32>) -> tensor<f32>
  return %y, %x : tensor<f32>, tensor<f32>
}
func.func private @backward(%r: tensor<f32>, %ct: tensor<f32>) -> tensor<f32> {
  %s = "gradopt.sign"(%r) : (tensor<f32>) -> tensor<f32>
  %g = "gradopt.mul"(%s, %ct) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %g : tensor<f32>
}
// CHECK-LABEL: func.func @custom
// CHECK-NEXT: "gradopt.sign"(%arg0)
// CHECK-NEXT: "gradopt.mul"(%0, %arg1)
// CHECK-NEXT: return %1
func.func @custom(%x: tensor<f32>, %ct: tensor<f32>) -> tensor<f32> {
  %v = "gradopt.vjp"() {callee = @f, wrt = array<i64: 0>}
    : () -> ((tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>))
  %r:2 = func.call_indirect %v(%x, %ct) : (tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>)
  return %r#1 : tensor<f32>
}

// -----

// A checkpoint is computed anew in the backward, behind a barrier.
func.func private @g(%x: tensor<f32>) -> tensor<f32> attributes {gradopt.checkpoint} {
  %e = "gradopt.exp"(%x) : (tensor<f32>) -> tensor<f32>
  %y = "gradopt.sin"(%e) : (tensor<f32>) -> tensor<f32>
  return %y : tensor<f32>
}
// CHECK-LABEL: func.func @checkpointed
// CHECK: "gradopt.exp"(%arg0)
// CHECK: %[[X:.*]] = "gradopt.optimization_barrier"(%arg0)
// CHECK: "gradopt.exp"(%[[X]])
func.func @checkpointed(%x: tensor<f32>, %ct: tensor<f32>) -> (tensor<f32>, tensor<f32>) {
  %v = "gradopt.vjp"() {callee = @g, wrt = array<i64: 0>}
    : () -> ((tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>))
  %r:2 = func.call_indirect %v(%x, %ct) : (tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>)
  return %r#0, %r#1 : tensor<f32>, tensor<f32>
}

// -----

// The gradient of a value inside, B54: 3 of h, 3 cos x of x.
func.func private @h(%x: tensor<f32>) -> tensor<f32> {
  %s = "gradopt.sin"(%x) : (tensor<f32>) -> tensor<f32>
  %t = "gradopt.tag"(%s) {label = "h"} : (tensor<f32>) -> tensor<f32>
  %c = "gradopt.constant"() {value = dense<3.0> : tensor<f32>} : () -> tensor<f32>
  %y = "gradopt.mul"(%t, %c) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %y : tensor<f32>
}
// CHECK-LABEL: func.func @tagged
// CHECK: %[[H:.*]] = "gradopt.mul"(%arg1, %{{.*}})
// CHECK: %[[C:.*]] = "gradopt.cos"(%arg0)
// CHECK: %[[X:.*]] = "gradopt.mul_no_nan"(%[[H]], %[[C]])
// CHECK: return %[[X]], %[[H]]
func.func @tagged(%x: tensor<f32>, %ct: tensor<f32>) -> (tensor<f32>, tensor<f32>) {
  %v = "gradopt.vjp"() {callee = @h, wrt = array<i64: 0>, intermediates = ["h"]}
    : () -> ((tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>, tensor<f32>))
  %r:3 = func.call_indirect %v(%x, %ct)
    : (tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>, tensor<f32>)
  return %r#1, %r#2 : tensor<f32>, tensor<f32>
}
