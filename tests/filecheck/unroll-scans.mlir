// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// RUN: gradopt-opt %s --gradopt-unroll-scans --split-input-file | filecheck %s
// RUN: gradopt-opt %s --gradopt-unroll-scans="limit=2 chunk=2" --split-input-file | filecheck %s --check-prefix=TRIPS

// Whole, or in trips, with the step left over behind them; sums of a trip begin with zeros.
func.func private @step(%c: tensor<f32>, %x: tensor<f32>) -> (tensor<f32>, tensor<f32>) {
  %y = "gradopt.exp"(%x) : (tensor<f32>) -> tensor<f32>
  %s = "gradopt.add"(%c, %y) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %s, %y : tensor<f32>, tensor<f32>
}
func.func @sums(%c: tensor<f32>, %x: tensor<5xf32>) -> (tensor<f32>, tensor<5xf32>) {
  %f = "gradopt.scan"() {callee = @step, length = 5 : i64, carries = 1 : i64, xs = 1 : i64} : () -> ((tensor<f32>, tensor<5xf32>) -> (tensor<f32>, tensor<5xf32>))
  %r:2 = func.call_indirect %f(%c, %x) : (tensor<f32>, tensor<5xf32>) -> (tensor<f32>, tensor<5xf32>)
  return %r#0, %r#1 : tensor<f32>, tensor<5xf32>
}
// CHECK-NOT: @step
// CHECK-LABEL: func.func @sums
// CHECK: %[[X:.*]]:5 = "gradopt.unstack"
// CHECK: "gradopt.exp"(%[[X]]#0)
// CHECK: "gradopt.exp"(%[[X]]#4)
// CHECK: "gradopt.stack"

// TRIPS-LABEL: func.func @sums
// TRIPS: "gradopt.reshape"({{.*}}) {shape = array<i64: 2, 2>}
// TRIPS: "gradopt.scan"() {callee = @step_by2, carries = 1 : i64, length = 2 : i64, unroll = 1 : i64, xs = 1 : i64}
// TRIPS: call_indirect
// TRIPS: "gradopt.exp"
// TRIPS-NOT: "gradopt.exp"
// TRIPS: "gradopt.concat"
// TRIPS-LABEL: func.func private @step_by2(%arg0: tensor<f32>
// TRIPS: "gradopt.constant"() {value = dense<0.000000e+00> : tensor<f32>}
// TRIPS: "gradopt.exp"
// TRIPS: "gradopt.exp"
// TRIPS: "gradopt.add"(%arg0

// -----

// A loop that nothing reads goes.
func.func private @step(%c: tensor<2xf32>) -> tensor<2xf32> {
  return %c : tensor<2xf32>
}
func.func @unread(%c: tensor<2xf32>) -> tensor<2xf32> {
  %f = "gradopt.scan"() {callee = @step, length = 900 : i64, carries = 1 : i64, xs = 0 : i64} : () -> ((tensor<2xf32>) -> tensor<2xf32>)
  %r = func.call_indirect %f(%c) : (tensor<2xf32>) -> tensor<2xf32>
  return %c : tensor<2xf32>
}
// CHECK-LABEL: func.func @unread
// CHECK-NEXT: return %arg0
// TRIPS-LABEL: func.func @unread
// TRIPS-NEXT: return %arg0
