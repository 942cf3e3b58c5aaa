// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// RUN: gradopt-opt %s --split-input-file --gradopt-differentiate | filecheck %s

// One input. The derived function repeats the primal, then applies the rules backwards, and is
// called directly.

!v = tensor<3xf32>
!s = tensor<f32>

func.func private @loss(%x: !v) -> !s {
  %0 = "gradopt.exp"(%x) : (!v) -> !v
  %1 = "gradopt.sum"(%0) {axes = array<i64: 0>} : (!v) -> !s
  return %1 : !s
}

func.func @one_input(%x: !v, %ct: !s) -> !v {
  %f = "gradopt.vjp"() {callee = @loss, wrt = array<i64: 0>} : () -> ((!v, !s) -> (!s, !v))
  %r:2 = call_indirect %f(%x, %ct) : (!v, !s) -> (!s, !v)
  return %r#1 : !v
}

// CHECK-LABEL: func.func private @loss(
// CHECK-LABEL: func.func @one_input(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<3xf32>, [[CT:%[a-z0-9]+]]: tensor<f32>)
// CHECK-NOT:     gradopt.vjp
// CHECK:         [[R:%[a-z0-9]+]]:2 = call @loss_vjp([[X]], [[CT]])
// CHECK-NEXT:    return [[R]]#1
// CHECK-LABEL: func.func private @loss_vjp(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<3xf32> {gradopt.name = "0"},
// CHECK-SAME:    [[CT:%[a-z0-9]+]]: tensor<f32> {gradopt.cotangent, gradopt.name = "ct0"})
// CHECK-SAME:    -> (tensor<f32>, tensor<3xf32>) attributes {gradopt.primals = 1 : i64} {
// CHECK-NEXT:    [[E:%[0-9]+]] = "gradopt.exp"([[X]])
// CHECK-NEXT:    [[Y:%[0-9]+]] = "gradopt.sum"([[E]])
// CHECK-NEXT:    [[B:%[0-9]+]] = "gradopt.broadcast"([[CT]])
// CHECK-NEXT:    [[D:%[0-9]+]] = "gradopt.mul_no_nan"([[B]], [[E]])
// CHECK-NEXT:    return [[Y]], [[D]]

// -----

// Several uses: contributions are added in the order in which they are met, from the last use to
// the first.

!v = tensor<3xf32>
!dv = (!v, !v) -> (!v, !v)

func.func private @f(%x: !v) -> !v {
  %0 = "gradopt.sin"(%x) : (!v) -> !v
  %1 = "gradopt.mul"(%x, %0) : (!v, !v) -> !v
  %2 = "gradopt.add"(%1, %x) : (!v, !v) -> !v
  return %2 : !v
}

func.func @several_uses(%x: !v, %ct: !v) -> !v {
  %f = "gradopt.vjp"() {callee = @f, wrt = array<i64: 0>} : () -> !dv
  %r:2 = call_indirect %f(%x, %ct) : !dv
  return %r#1 : !v
}

// CHECK-LABEL: func.func @several_uses(
// CHECK-LABEL: func.func private @f_vjp(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<3xf32> {{.*}}, [[CT:%[a-z0-9]+]]: tensor<3xf32>
// CHECK-NEXT:    [[S:%[0-9]+]] = "gradopt.sin"([[X]])
// CHECK:         [[A:%[0-9]+]] = "gradopt.mul_no_nan"([[CT]], [[S]])
// CHECK:         [[M:%[0-9]+]] = "gradopt.mul_no_nan"([[CT]], [[X]])
// CHECK:         [[C:%[0-9]+]] = "gradopt.cos"([[X]])
// CHECK-NEXT:    [[B:%[0-9]+]] = "gradopt.mul_no_nan"([[M]], [[C]])
// CHECK-NEXT:    [[AB:%[0-9]+]] = "gradopt.add"([[CT]], [[A]])
// CHECK-NEXT:    [[D:%[0-9]+]] = "gradopt.add"([[AB]], [[B]])
// CHECK-NEXT:    return {{%[0-9]+}}, [[D]]

// -----

// A single contribution is not copied: the cotangent itself is the gradient, of both inputs.

!v = tensor<3xf32>

func.func private @f(%x: !v, %y: !v) -> !v {
  %0 = "gradopt.add"(%x, %y) : (!v, !v) -> !v
  return %0 : !v
}

func.func @single_contribution(%x: !v, %y: !v, %ct: !v) -> (!v, !v) {
  %f = "gradopt.vjp"() {callee = @f, wrt = array<i64: 0, 1>} : () -> ((!v, !v, !v) -> (!v, !v, !v))
  %r:3 = call_indirect %f(%x, %y, %ct) : (!v, !v, !v) -> (!v, !v, !v)
  return %r#1, %r#2 : !v, !v
}

// CHECK-LABEL: func.func @single_contribution(
// CHECK-LABEL: func.func private @f_vjp(
// CHECK-SAME:    [[CT:%[a-z0-9]+]]: tensor<3xf32> {gradopt.cotangent, gradopt.name = "ct0"}
// CHECK-NEXT:    [[Y:%[0-9]+]] = "gradopt.add"
// CHECK-NEXT:    return [[Y]], [[CT]], [[CT]]

// -----

// A value that no head depends on costs nothing, whether it has a gradient rule or not.

!v = tensor<3xf32>
!dv = (!v, !v) -> (!v, !v)

func.func private @f(%x: !v) -> !v {
  %0 = "gradopt.sinh"(%x) : (!v) -> !v
  %1 = math.exp %0 : !v
  %2 = "gradopt.neg"(%x) : (!v) -> !v
  return %2 : !v
}

func.func @unused_result(%x: !v, %ct: !v) -> !v {
  %f = "gradopt.vjp"() {callee = @f, wrt = array<i64: 0>} : () -> !dv
  %r:2 = call_indirect %f(%x, %ct) : !dv
  return %r#1 : !v
}

// CHECK-LABEL: func.func @unused_result(
// CHECK-LABEL: func.func private @f_vjp(
// CHECK-SAME:    [[CT:%[a-z0-9]+]]: tensor<3xf32> {gradopt.cotangent, gradopt.name = "ct0"}
// CHECK-NEXT:    "gradopt.sinh"
// CHECK-NEXT:    math.exp
// CHECK-NEXT:    "gradopt.neg"
// CHECK-NEXT:    [[D:%[0-9]+]] = "gradopt.neg"([[CT]])
// CHECK-NEXT:    return {{%[0-9]+}}, [[D]]

// -----

// Heads: a cotangent for the chosen result only. By default there is one for every floating-point
// result, and none for the integer one.

!v = tensor<3xf32>
!i = tensor<3xi32>

func.func private @f(%x: !v {gradopt.name = "x"}) -> (!i, !v, !v) {
  %0 = "gradopt.convert"(%x) {dtype = i32} : (!v) -> !i
  %1 = "gradopt.sin"(%x) : (!v) -> !v
  %2 = "gradopt.exp"(%x) : (!v) -> !v
  return %0, %1, %2 : !i, !v, !v
}

func.func @heads(%x: !v, %ct: !v) -> (!v, !v) {
  %f = "gradopt.vjp"() {callee = @f, wrt = array<i64: 0>, heads = array<i64: 2>}
      : () -> ((!v, !v) -> (!i, !v, !v, !v))
  %r:4 = call_indirect %f(%x, %ct) : (!v, !v) -> (!i, !v, !v, !v)
  %g = "gradopt.vjp"() {callee = @f, wrt = array<i64: 0>} : () -> ((!v, !v, !v) -> (!i, !v, !v, !v))
  %s:4 = call_indirect %g(%x, %ct, %ct) : (!v, !v, !v) -> (!i, !v, !v, !v)
  return %r#3, %s#3 : !v, !v
}

// CHECK-LABEL: func.func @heads(
// CHECK:         call @f_vjp(
// CHECK:         call @f_vjp_(
// CHECK-LABEL: func.func private @f_vjp(
// CHECK-SAME:    {gradopt.name = "x"}, [[CT:%[a-z0-9]+]]: tensor<3xf32> {gradopt.cotangent, gradopt.name = "ct2"})
// CHECK-NOT:     gradopt.cos
// CHECK:         [[D:%[0-9]+]] = "gradopt.mul_no_nan"([[CT]],
// CHECK-NEXT:    return {{.*}}, [[D]] : tensor<3xi32>
// CHECK-LABEL: func.func private @f_vjp_(
// CHECK-SAME:    {gradopt.cotangent, gradopt.name = "ct1"}, {{%[a-z0-9]+}}: tensor<3xf32> {gradopt.cotangent, gradopt.name = "ct2"})
// CHECK:         gradopt.cos
// CHECK:         [[D:%[0-9]+]] = "gradopt.add"(
// CHECK-NEXT:    return {{.*}}, [[D]] : tensor<3xi32>

// -----

// Gradients come in the order of `wrt`. The same question asked twice has one answer.

!v = tensor<3xf32>
!w = tensor<2xf32>
!dv = (!v, !w, !v, !w) -> (!v, !w, !w, !v)

func.func private @f(%x: !v, %y: !w) -> (!v, !w) {
  %0 = "gradopt.neg"(%x) : (!v) -> !v
  %1 = "gradopt.exp"(%y) : (!w) -> !w
  return %0, %1 : !v, !w
}

func.func @order_of_wrt(%x: !v, %y: !w, %a: !v, %b: !w) -> (!w, !v) {
  %f = "gradopt.vjp"() {callee = @f, wrt = array<i64: 1, 0>} : () -> !dv
  %g = "gradopt.vjp"() {callee = @f, wrt = array<i64: 1, 0>} : () -> !dv
  %r:4 = call_indirect %f(%x, %y, %a, %b) : !dv
  %s:4 = call_indirect %g(%x, %y, %a, %b) : !dv
  return %r#2, %s#3 : !w, !v
}

// CHECK-LABEL: func.func @order_of_wrt(
// CHECK:         call @f_vjp(
// CHECK:         call @f_vjp(
// CHECK-LABEL: func.func private @f_vjp(
// CHECK-SAME:    [[A:%[a-z0-9]+]]: tensor<3xf32> {gradopt.cotangent, gradopt.name = "ct0"},
// CHECK-SAME:    [[B:%[a-z0-9]+]]: tensor<2xf32> {gradopt.cotangent, gradopt.name = "ct1"})
// CHECK-DAG:     [[DX:%[0-9]+]] = "gradopt.neg"([[A]])
// CHECK-DAG:     [[DY:%[0-9]+]] = "gradopt.mul_no_nan"([[B]],
// CHECK:         return {{.*}}, [[DY]], [[DX]] :
// CHECK-NOT:     @f_vjp_(

// -----

// An input that no head depends on: zeros on request.

!v = tensor<3xf32>
!w = tensor<2xf32>

func.func private @f(%x: !v, %y: !w) -> !v {
  %0 = "gradopt.sin"(%x) : (!v) -> !v
  return %0 : !v
}

func.func @unreachable_zeros(%x: !v, %y: !w, %ct: !v) -> !w {
  %f = "gradopt.vjp"() {callee = @f, wrt = array<i64: 1>, unreachable = "zeros"}
      : () -> ((!v, !w, !v) -> (!v, !w))
  %r:2 = call_indirect %f(%x, %y, %ct) : (!v, !w, !v) -> (!v, !w)
  return %r#1 : !w
}

// CHECK-LABEL: func.func @unreachable_zeros(
// CHECK-LABEL: func.func private @f_vjp(
// CHECK-NEXT:    [[Y:%[0-9]+]] = "gradopt.sin"
// CHECK-NEXT:    [[D:%[0-9]+]] = "gradopt.constant"() {value = dense<0.0{{.*}}> : tensor<2xf32>}
// CHECK-NEXT:    return [[Y]], [[D]]

// -----

// A second derivative: @slope contains a vjp, and is differentiated itself. Its own derivative is
// written out first, inside.

!v = tensor<3xf32>
!dv = (!v, !v) -> (!v, !v)

func.func private @f(%x: !v) -> !v {
  %0 = "gradopt.sin"(%x) : (!v) -> !v
  return %0 : !v
}

func.func private @slope(%x: !v) -> !v {
  %one = "gradopt.constant"() {value = dense<1.0> : !v} : () -> !v
  %f = "gradopt.vjp"() {callee = @f, wrt = array<i64: 0>} : () -> !dv
  %r:2 = call_indirect %f(%x, %one) : !dv
  return %r#1 : !v
}

func.func @second(%x: !v, %ct: !v) -> !v {
  %f = "gradopt.vjp"() {callee = @slope, wrt = array<i64: 0>} : () -> !dv
  %r:2 = call_indirect %f(%x, %ct) : !dv
  return %r#1 : !v
}

// CHECK-LABEL: func.func private @slope(
// CHECK:         call @f_vjp(
// CHECK-LABEL: func.func @second(
// CHECK:         call @slope_vjp(
// CHECK-LABEL: func.func private @f_vjp(
// CHECK-LABEL: func.func private @slope_vjp(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<3xf32> {{.*}}, [[CT:%[a-z0-9]+]]: tensor<3xf32>
// CHECK-NOT:     call
// CHECK:         [[ONE:%[0-9]+]] = "gradopt.constant"
// CHECK:         [[C:%[0-9]+]] = "gradopt.cos"([[X]])
// CHECK:         [[Y:%[0-9]+]] = "gradopt.mul_no_nan"([[ONE]], [[C]])
// CHECK:         [[D:%[0-9]+]] = "gradopt.mul_no_nan"({{%[0-9]+}}, {{%[0-9]+}})
// CHECK-NEXT:    return [[Y]], [[D]]

// -----

// Forward mode: the tangent of the result, from the vjp of the vjp.

!v = tensor<3xf32>
!w = tensor<2xf32>

func.func private @f(%x: !v {gradopt.name = "x"}, %y: !w {gradopt.name = "y"}) -> !v {
  %0 = "gradopt.exp"(%x) : (!v) -> !v
  return %0 : !v
}

func.func @forward(%x: !v, %y: !w, %t: !v) -> !v {
  %f = "gradopt.jvp"() {callee = @f, wrt = array<i64: 0>} : () -> ((!v, !w, !v) -> (!v, !v))
  %r:2 = call_indirect %f(%x, %y, %t) : (!v, !w, !v) -> (!v, !v)
  return %r#1 : !v
}

// CHECK-LABEL: func.func @forward(
// CHECK:         call @f_jvp(
// CHECK-LABEL: func.func private @f_vjp(
// CHECK-LABEL: func.func private @f_vjp_vjp(
// CHECK-LABEL: func.func private @f_jvp(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<3xf32> {gradopt.name = "x"},
// CHECK-SAME:    [[Y:%[a-z0-9]+]]: tensor<2xf32> {gradopt.name = "y"},
// CHECK-SAME:    [[T:%[a-z0-9]+]]: tensor<3xf32> {gradopt.name = "d_x"}) -> (tensor<3xf32>, tensor<3xf32>)
// CHECK:         [[R:%[0-9]+]] = call @f([[X]], [[Y]])
// CHECK:         [[ONES:%[0-9]+]] = "gradopt.constant"() {value = dense<1.0{{.*}}> : tensor<3xf32>}
// CHECK:         [[D:%[0-9]+]]:3 = call @f_vjp_vjp([[X]], [[Y]], [[ONES]], [[T]])
// CHECK-NEXT:    return [[R]], [[D]]#2

// -----

// Calls in the differentiated function are differentiated through.

!v = tensor<3xf32>
!dv = (!v, !v) -> (!v, !v)

func.func private @inner(%x: !v) -> !v {
  %0 = "gradopt.exp"(%x) : (!v) -> !v
  return %0 : !v
}

func.func private @outer(%x: !v) -> !v {
  %0 = call @inner(%x) : (!v) -> !v
  %1 = call @inner(%0) : (!v) -> !v
  return %1 : !v
}

func.func @through_calls(%x: !v, %ct: !v) -> !v {
  %f = "gradopt.vjp"() {callee = @outer, wrt = array<i64: 0>} : () -> !dv
  %r:2 = call_indirect %f(%x, %ct) : !dv
  return %r#1 : !v
}

// CHECK-LABEL: func.func private @outer(
// CHECK:         call @inner(
// CHECK-LABEL: func.func @through_calls(
// CHECK-LABEL: func.func private @outer_vjp(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<3xf32> {{.*}}, [[CT:%[a-z0-9]+]]: tensor<3xf32>
// CHECK-NEXT:    [[A:%[0-9]+]] = "gradopt.exp"([[X]])
// CHECK-NEXT:    [[B:%[0-9]+]] = "gradopt.exp"([[A]])
// CHECK-NEXT:    [[DA:%[0-9]+]] = "gradopt.mul_no_nan"([[CT]], [[B]])
// CHECK-NEXT:    [[DX:%[0-9]+]] = "gradopt.mul_no_nan"([[DA]], [[A]])
// CHECK-NEXT:    return [[B]], [[DX]]

// -----

// A function value that is used otherwise than called becomes the derived function's symbol.

!v = tensor<3xf32>
!dv = (!v, !v) -> (!v, !v)

func.func private @f(%x: !v) -> !v {
  %0 = "gradopt.neg"(%x) : (!v) -> !v
  return %0 : !v
}

func.func @function_value(%x: !v, %ct: !v) -> (!v, !dv) {
  %f = "gradopt.vjp"() {callee = @f, wrt = array<i64: 0>} : () -> !dv
  %r:2 = call_indirect %f(%x, %ct) : !dv
  return %r#1, %f : !v, !dv
}

// CHECK-LABEL: func.func @function_value(
// CHECK:         [[F:%[a-z0-9_]+]] = constant @f_vjp : (tensor<3xf32>, tensor<3xf32>) ->
// CHECK:         [[R:%[0-9]+]]:2 = call @f_vjp(
// CHECK-NEXT:    return [[R]]#1, [[F]]

// -----

// What has a gradient of zero by definition ends there. The input is reached all the same, so zeros
// are no error.

!v = tensor<3xf32>
!dv = (!v, !v) -> (!v, !v)

func.func private @f(%x: !v) -> !v {
  %0 = "gradopt.exp"(%x) : (!v) -> !v
  %1 = "gradopt.floor"(%0) : (!v) -> !v
  return %1 : !v
}

func.func @no_gradient(%x: !v, %ct: !v) -> !v {
  %f = "gradopt.vjp"() {callee = @f, wrt = array<i64: 0>} : () -> !dv
  %r:2 = call_indirect %f(%x, %ct) : !dv
  return %r#1 : !v
}

// CHECK-LABEL: func.func @no_gradient(
// CHECK-LABEL: func.func private @f_vjp(
// CHECK-NEXT:    "gradopt.exp"
// CHECK-NEXT:    [[Y:%[0-9]+]] = "gradopt.floor"
// CHECK-NEXT:    [[D:%[0-9]+]] = "gradopt.constant"() {value = dense<0.0{{.*}}> : tensor<3xf32>}
// CHECK-NEXT:    return [[Y]], [[D]]

// -----

// stop_gradient: only the factor outside it is differentiated.

!v = tensor<3xf32>
!dv = (!v, !v) -> (!v, !v)

func.func private @f(%x: !v) -> !v {
  %0 = "gradopt.exp"(%x) : (!v) -> !v
  %1 = "gradopt.stop_gradient"(%0) : (!v) -> !v
  %2 = "gradopt.mul"(%x, %1) : (!v, !v) -> !v
  return %2 : !v
}

func.func @stopped(%x: !v, %ct: !v) -> !v {
  %f = "gradopt.vjp"() {callee = @f, wrt = array<i64: 0>} : () -> !dv
  %r:2 = call_indirect %f(%x, %ct) : !dv
  return %r#1 : !v
}

// CHECK-LABEL: func.func @stopped(
// CHECK-LABEL: func.func private @f_vjp(
// CHECK-SAME:    [[CT:%[a-z0-9]+]]: tensor<3xf32> {gradopt.cotangent, gradopt.name = "ct0"}
// CHECK:         [[S:%[0-9]+]] = "gradopt.stop_gradient"
// CHECK:         [[D:%[0-9]+]] = "gradopt.mul_no_nan"([[CT]], [[S]])
// CHECK-NOT:     gradopt.add
// CHECK:         return {{%[0-9]+}}, [[D]]

// -----

// Integer operands get no cotangent: rows are added back where they came from.

!t = tensor<10x4xf32>
!i = tensor<3xi32>
!r = tensor<3x4xf32>

func.func private @f(%table: !t, %ids: !i) -> !r {
  %0 = "gradopt.take"(%table, %ids) : (!t, !i) -> !r
  return %0 : !r
}

func.func @integer_operand(%table: !t, %ids: !i, %ct: !r) -> !t {
  %f = "gradopt.vjp"() {callee = @f, wrt = array<i64: 0>} : () -> ((!t, !i, !r) -> (!r, !t))
  %r:2 = call_indirect %f(%table, %ids, %ct) : (!t, !i, !r) -> (!r, !t)
  return %r#1 : !t
}

// CHECK-LABEL: func.func @integer_operand(
// CHECK-LABEL: func.func private @f_vjp(
// CHECK-SAME:    [[I:%[a-z0-9]+]]: tensor<3xi32> {{[^,]*}}, [[CT:%[a-z0-9]+]]: tensor<3x4xf32>
// CHECK:         [[Z:%[0-9]+]] = "gradopt.constant"() {value = dense<0.0{{.*}}> : tensor<10x4xf32>}
// CHECK-NEXT:    [[D:%[0-9]+]] = "gradopt.scatter_add"([[Z]], [[I]], [[CT]])
// CHECK-NEXT:    return {{%[0-9]+}}, [[D]]

// -----

// Several results, one of them used: the others' cotangents are zeros made by the rule.

!v = tensor<3xf32>
!m = tensor<2x3xf32>

func.func private @f(%x: !m) -> !v {
  %0:2 = "gradopt.unstack"(%x) {axis = 0 : i64} : (!m) -> (!v, !v)
  return %0#1 : !v
}

func.func @several_results(%x: !m, %ct: !v) -> !m {
  %f = "gradopt.vjp"() {callee = @f, wrt = array<i64: 0>} : () -> ((!m, !v) -> (!v, !m))
  %r:2 = call_indirect %f(%x, %ct) : (!m, !v) -> (!v, !m)
  return %r#1 : !m
}

// CHECK-LABEL: func.func @several_results(
// CHECK-LABEL: func.func private @f_vjp(
// CHECK-SAME:    [[CT:%[a-z0-9]+]]: tensor<3xf32> {gradopt.cotangent, gradopt.name = "ct0"}
// CHECK:         [[Z:%[0-9]+]] = "gradopt.constant"() {value = dense<0.0{{.*}}> : tensor<3xf32>}
// CHECK-NEXT:    [[D:%[0-9]+]] = "gradopt.stack"([[Z]], [[CT]]) {axis = 0 : i64}
// CHECK-NEXT:    return {{%[0-9]+}}#1, [[D]]

// -----

// The same for an op with results of two kinds: the loss's rule reads the saved log-sum-exp, and
// its cotangent, which is none, costs nothing.

!x = tensor<8x10xf32>
!l = tensor<8xi32>
!v = tensor<8xf32>

func.func private @f(%x: !x, %labels: !l) -> !v {
  %0:2 = "gradopt.cross_entropy"(%x, %labels) : (!x, !l) -> (!v, !v)
  return %0#0 : !v
}

func.func @saved_result(%x: !x, %labels: !l, %ct: !v) -> !x {
  %f = "gradopt.vjp"() {callee = @f, wrt = array<i64: 0>} : () -> ((!x, !l, !v) -> (!v, !x))
  %r:2 = call_indirect %f(%x, %labels, %ct) : (!x, !l, !v) -> (!v, !x)
  return %r#1 : !x
}

// CHECK-LABEL: func.func @saved_result(
// CHECK-LABEL: func.func private @f_vjp(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<8x10xf32> {{.*}}, [[CT:%[a-z0-9]+]]: tensor<8xf32>
// CHECK:         [[R:%[0-9]+]]:2 = "gradopt.cross_entropy"
// CHECK:         "gradopt.broadcast"([[R]]#1)
// CHECK:         [[P:%[0-9]+]] = "gradopt.exp"
// CHECK:         [[G:%[0-9]+]] = "gradopt.sub"([[P]],
// CHECK:         [[D:%[0-9]+]] = "gradopt.mul_no_nan"({{%[0-9]+}}, [[G]])
// CHECK-NEXT:    return [[R]]#0, [[D]]

// -----

// An extent that is known only at run time is read from the operand.

!v = tensor<?xf32>
!s = tensor<f32>

func.func private @f(%x: !v) -> !s {
  %0 = "gradopt.sum"(%x) {axes = array<i64: 0>} : (!v) -> !s
  return %0 : !s
}

func.func @unknown_extent(%x: !v, %ct: !s) -> !v {
  %f = "gradopt.vjp"() {callee = @f, wrt = array<i64: 0>} : () -> ((!v, !s) -> (!s, !v))
  %r:2 = call_indirect %f(%x, %ct) : (!v, !s) -> (!s, !v)
  return %r#1 : !v
}

// CHECK-LABEL: func.func @unknown_extent(
// CHECK-LABEL: func.func private @f_vjp(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<?xf32> {{.*}}, [[CT:%[a-z0-9]+]]: tensor<f32>
// CHECK:         [[D:%[0-9]+]] = "gradopt.broadcast"([[CT]], [[X]])
// CHECK-NEXT:    return {{%[0-9]+}}, [[D]]
