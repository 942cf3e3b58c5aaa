// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// RUN: gradopt-opt %s --split-input-file --gradopt-inline --symbol-dce | filecheck %s

// The body takes the place of the call, between what stands before and after; calls in it are
// replaced too, and nothing is left of functions that are not public.

!v = tensor<3xf32>

func.func private @twice(%x: !v) -> !v {
  %0 = call @once(%x) : (!v) -> !v
  %1 = call @once(%0) : (!v) -> !v
  return %1 : !v
}

func.func private @once(%x: !v) -> !v {
  %0 = "gradopt.exp"(%x) : (!v) -> !v
  return %0 : !v
}

func.func @nested(%x: !v) -> !v {
  %0 = "gradopt.sin"(%x) : (!v) -> !v
  %1 = call @twice(%0) : (!v) -> !v
  %2 = "gradopt.cos"(%1) : (!v) -> !v
  return %2 : !v
}

// CHECK-NOT:   private
// CHECK-LABEL: func.func @nested(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<3xf32>
// CHECK-NEXT:    [[S:%[0-9]+]] = "gradopt.sin"([[X]])
// CHECK-NEXT:    [[A:%[0-9]+]] = "gradopt.exp"([[S]])
// CHECK-NEXT:    [[B:%[0-9]+]] = "gradopt.exp"([[A]])
// CHECK-NEXT:    [[C:%[0-9]+]] = "gradopt.cos"([[B]])
// CHECK-NEXT:    return [[C]]

// -----

// Results that are arguments, or the same value twice, and a result nobody uses.

!v = tensor<3xf32>

func.func @callee(%x: !v, %y: !v) -> (!v, !v, !v, !v) {
  %m = "gradopt.constant"() {value = dense<1.0> : tensor<3x2xf32>} : () -> tensor<3x2xf32>
  %i = "gradopt.constant"() {value = dense<1> : tensor<3xi32>} : () -> tensor<3xi32>
  %0:2 = "gradopt.cross_entropy"(%m, %i) : (tensor<3x2xf32>, tensor<3xi32>) -> (!v, !v)
  return %y, %0#1, %0#1, %x : !v, !v, !v, !v
}

func.func @several_results(%x: !v, %y: !v) -> (!v, !v, !v) {
  %0:4 = call @callee(%x, %y) : (!v, !v) -> (!v, !v, !v, !v)
  return %0#0, %0#1, %0#2 : !v, !v, !v
}

// CHECK-LABEL: func.func @several_results(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<3xf32>, [[Y:%[a-z0-9]+]]: tensor<3xf32>
// CHECK:         [[R:%[0-9]+]]:2 = "gradopt.cross_entropy"
// CHECK:         return [[Y]], [[R]]#1, [[R]]#1

// -----

// A function without a body stays called, and a derivative stays asked for.

!v = tensor<3xf32>
!dv = (!v, !v) -> (!v, !v)

func.func private @elsewhere(!v) -> !v

func.func private @f(%x: !v) -> !v {
  return %x : !v
}

func.func private @slope(%x: !v) -> !v {
  %f = "gradopt.vjp"() {callee = @f, wrt = array<i64: 0>} : () -> !dv
  %r:2 = call_indirect %f(%x, %x) : !dv
  %0 = call @elsewhere(%r#1) : (!v) -> !v
  return %0 : !v
}

func.func @stays(%x: !v) -> !v {
  %0 = call @slope(%x) : (!v) -> !v
  return %0 : !v
}

// CHECK:       func.func private @elsewhere(
// CHECK:       func.func private @f(
// CHECK-NOT:   @slope
// CHECK-LABEL: func.func @stays(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<3xf32>
// CHECK:         [[F:%[0-9]+]] = "gradopt.vjp"() {callee = @f
// CHECK-NEXT:    [[R:%[0-9]+]]:2 = call_indirect [[F]]([[X]], [[X]])
// CHECK-NEXT:    [[Y:%[0-9]+]] = call @elsewhere([[R]]#1)
// CHECK-NEXT:    return [[Y]]

// -----

// Calls in regions, too.

!v = tensor<3xf32>

func.func private @inner(%x: !v) -> !v {
  %0 = "gradopt.sin"(%x) : (!v) -> !v
  return %0 : !v
}

func.func @in_a_region(%x: !v, %c: i1) -> !v {
  %r = scf.if %c -> (!v) {
    %y = func.call @inner(%x) : (!v) -> !v
    scf.yield %y : !v
  } else {
    scf.yield %x : !v
  }
  return %r : !v
}

// CHECK-LABEL: func.func @in_a_region(
// CHECK:         scf.if
// CHECK-NEXT:      [[Y:%[0-9]+]] = "gradopt.sin"
// CHECK-NEXT:      scf.yield [[Y]]
