// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// RUN: gradopt-opt %s --gradopt-simplify | filecheck %s

// Moves that cancel or join, a function a rule, and what looks alike and must stay.

!v = tensor<3xf32>
!m = tensor<2x3xf32>
!w = tensor<3x2xf32>
!c = tensor<2x3x4xf32>
!n = tensor<6xf32>
!d = tensor<?x3xf32>

// --- reshape, transpose --------------------------------------------------------------------------

// CHECK-LABEL: func.func @reshape(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<2x3xf32>
// CHECK-NEXT:    [[Y:%[a-z0-9]+]] = "gradopt.reshape"([[X]]) {shape = array<i64: 3, 2>}
// CHECK-NEXT:    return [[X]], [[Y]], [[X]]
func.func @reshape(%x: !m) -> (!m, !w, !m) {
  %0 = "gradopt.reshape"(%x) {shape = array<i64: 2, 3>} : (!m) -> !m
  %1 = "gradopt.reshape"(%x) {shape = array<i64: 6>} : (!m) -> !n
  %2 = "gradopt.reshape"(%1) {shape = array<i64: 3, 2>} : (!n) -> !w
  %3 = "gradopt.reshape"(%1) {shape = array<i64: 2, 3>} : (!n) -> !m
  return %0, %2, %3 : !m, !w, !m
}

// CHECK-LABEL: func.func @reshape_unknown(
// CHECK-COUNT-2: "gradopt.reshape"
// CHECK:         return
func.func @reshape_unknown(%x: !d) -> tensor<?xf32> {
  %0 = "gradopt.reshape"(%x) {shape = array<i64: 3, -9223372036854775808>} : (!d) -> tensor<3x?xf32>
  %1 = "gradopt.reshape"(%0) {shape = array<i64: -9223372036854775808>}
      : (tensor<3x?xf32>) -> tensor<?xf32>
  return %1 : tensor<?xf32>
}

// CHECK-LABEL: func.func @transpose(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<2x3x4xf32>
// CHECK-NEXT:    [[Y:%[a-z0-9]+]] = "gradopt.transpose"([[X]]) {permutation = array<i64: 2, 1, 0>}
// CHECK-NEXT:    return [[X]], [[Y]], [[X]]
func.func @transpose(%x: !c) -> (!c, tensor<4x3x2xf32>, !c) {
  %0 = "gradopt.transpose"(%x) {permutation = array<i64: 0, 1, 2>} : (!c) -> !c
  %1 = "gradopt.transpose"(%x) {permutation = array<i64: 1, 2, 0>} : (!c) -> tensor<3x4x2xf32>
  %2 = "gradopt.transpose"(%1) {permutation = array<i64: 1, 0, 2>}
      : (tensor<3x4x2xf32>) -> tensor<4x3x2xf32>
  %3 = "gradopt.transpose"(%1) {permutation = array<i64: 2, 0, 1>} : (tensor<3x4x2xf32>) -> !c
  return %0, %2, %3 : !c, tensor<4x3x2xf32>, !c
}

// Only extents of 1 move: the elements keep their order.
// CHECK-LABEL: func.func @transpose_of_ones(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<2x1x3xf32>
// CHECK-DAG:     [[Y:%[a-z0-9]+]] = "gradopt.reshape"([[X]]) {shape = array<i64: 1, 2, 3>}
// CHECK-DAG:     [[Z:%[a-z0-9]+]] = "gradopt.transpose"([[X]]) {permutation = array<i64: 2, 1, 0>}
// CHECK:         return [[Y]], [[Z]]
func.func @transpose_of_ones(%x: tensor<2x1x3xf32>) -> (tensor<1x2x3xf32>, tensor<3x1x2xf32>) {
  %0 = "gradopt.transpose"(%x) {permutation = array<i64: 1, 0, 2>}
      : (tensor<2x1x3xf32>) -> tensor<1x2x3xf32>
  %1 = "gradopt.transpose"(%x) {permutation = array<i64: 2, 1, 0>}
      : (tensor<2x1x3xf32>) -> tensor<3x1x2xf32>
  return %0, %1 : tensor<1x2x3xf32>, tensor<3x1x2xf32>
}

// --- broadcast -----------------------------------------------------------------------------------

// CHECK-LABEL: func.func @broadcast(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<3xf32>, [[E:%[a-z0-9]+]]: tensor<1xf32>
// CHECK-DAG:     [[A:%[a-z0-9]+]] = "gradopt.broadcast"([[X]]) {dims = array<i64: 1>, shape = array<i64: 2, 3, 4>}
// CHECK-DAG:     [[B:%[a-z0-9]+]] = "gradopt.broadcast"([[X]]) {dims = array<i64: 0>, shape = array<i64: 3, 2>}
// CHECK-DAG:     [[C:%[a-z0-9]+]] = "gradopt.reshape"([[E]]) {shape = array<i64: 1, 1>}
// CHECK:         return [[X]], [[A]], [[B]], [[C]]
func.func @broadcast(%x: !v, %e: tensor<1xf32>) -> (!v, !c, !w, tensor<1x1xf32>) {
  %0 = "gradopt.broadcast"(%x) {shape = array<i64: 3>, dims = array<i64: 0>} : (!v) -> !v
  %1 = "gradopt.broadcast"(%x) {shape = array<i64: 3, 4>, dims = array<i64: 0>}
      : (!v) -> tensor<3x4xf32>
  %2 = "gradopt.broadcast"(%1) {shape = array<i64: 2, 3, 4>, dims = array<i64: 1, 2>}
      : (tensor<3x4xf32>) -> !c
  %3 = "gradopt.reshape"(%x) {shape = array<i64: 3, 1>} : (!v) -> tensor<3x1xf32>
  %4 = "gradopt.broadcast"(%3) {shape = array<i64: 3, 2>, dims = array<i64: 0, 1>}
      : (tensor<3x1xf32>) -> !w
  %5 = "gradopt.broadcast"(%e) {shape = array<i64: 1, 1>, dims = array<i64: 1>}
      : (tensor<1xf32>) -> tensor<1x1xf32>
  return %0, %2, %4, %5 : !v, !c, !w, tensor<1x1xf32>
}

// A reshape that does more than add extents of 1 is no part of a broadcast.
// CHECK-LABEL: func.func @broadcast_of_reshape(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<6xf32>
// CHECK-NEXT:    [[R:%[a-z0-9]+]] = "gradopt.reshape"([[X]])
// CHECK-NEXT:    [[Y:%[a-z0-9]+]] = "gradopt.broadcast"([[R]])
// CHECK-NEXT:    return [[Y]]
func.func @broadcast_of_reshape(%x: !n) -> tensor<4x2x3xf32> {
  %0 = "gradopt.reshape"(%x) {shape = array<i64: 2, 3>} : (!n) -> !m
  %1 = "gradopt.broadcast"(%0) {shape = array<i64: 4, 2, 3>, dims = array<i64: 1, 2>}
      : (!m) -> tensor<4x2x3xf32>
  return %1 : tensor<4x2x3xf32>
}

// A result that stands for an unknown extent is replaced by its operand, and need not be computed.
// CHECK-LABEL: func.func @like_operand(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<?x3xf32>, [[V:%[a-z0-9]+]]: tensor<3xf32>
// CHECK-NEXT:    [[Y:%[a-z0-9]+]] = "gradopt.broadcast"([[V]], [[X]])
// CHECK-NEXT:    return [[Y]]
func.func @like_operand(%x: !d, %v: !v) -> !d {
  %0 = "gradopt.exp"(%x) : (!d) -> !d
  %1 = "gradopt.broadcast"(%v, %0) {
      shape = array<i64: -9223372036854775808, 3>, dims = array<i64: 1>}
      : (!v, !d) -> !d
  return %1 : !d
}

// --- reverse, slice, pad -------------------------------------------------------------------------

// CHECK-LABEL: func.func @reverse(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<2x3xf32>
// CHECK-NEXT:    [[A:%[a-z0-9]+]] = "gradopt.reverse"([[X]]) {axes = array<i64: 0>}
// CHECK-NEXT:    [[B:%[a-z0-9]+]] = "gradopt.reverse"([[A]]) {axes = array<i64: 1>}
// CHECK-NEXT:    return [[X]], [[X]], [[B]]
func.func @reverse(%x: !m) -> (!m, !m, !m) {
  %0 = "gradopt.reverse"(%x) {axes = array<i64: 0>} : (!m) -> !m
  %1 = "gradopt.reverse"(%0) {axes = array<i64: 0>} : (!m) -> !m
  %2 = "gradopt.reverse"(%x) {axes = array<i64>} : (!m) -> !m
  %3 = "gradopt.reverse"(%0) {axes = array<i64: 1>} : (!m) -> !m
  return %1, %2, %3 : !m, !m, !m
}

// CHECK-LABEL: func.func @slice(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<6xf32>, [[Y:%[a-z0-9]+]]: tensor<3xf32>
// CHECK-NEXT:    return [[X]], [[Y]], [[X]]
func.func @slice(%x: !n, %y: !v) -> (!n, !v, !n) {
  %0 = "gradopt.slice"(%x) {start = array<i64: 0>, limit = array<i64: 6>, stride = array<i64: 1>}
      : (!n) -> !n
  %1 = "gradopt.pad"(%y) {low = array<i64: 2>, high = array<i64: 1>, interior = array<i64: 1>}
      : (!v) -> tensor<8xf32>
  %2 = "gradopt.slice"(%1) {start = array<i64: 2>, limit = array<i64: 7>, stride = array<i64: 2>}
      : (tensor<8xf32>) -> !v
  %3 = "gradopt.pad"(%x) {low = array<i64: 0>, high = array<i64: 0>, interior = array<i64: 0>}
      : (!n) -> !n
  return %0, %2, %3 : !n, !v, !n
}

// Of as many elements, but others: started elsewhere, in other steps, or only a part.
// CHECK-LABEL: func.func @slice_of_others(
// CHECK-COUNT-2: "gradopt.pad"
// CHECK-COUNT-3: "gradopt.slice"
// CHECK:         return
func.func @slice_of_others(%y: !v) -> (!v, !v, tensor<2xf32>) {
  %0 = "gradopt.pad"(%y) {low = array<i64: 2>, high = array<i64: 2>, interior = array<i64: 0>}
      : (!v) -> tensor<7xf32>
  %1 = "gradopt.pad"(%y) {low = array<i64: 2>, high = array<i64: 2>, interior = array<i64: 1>}
      : (!v) -> tensor<9xf32>
  %2 = "gradopt.slice"(%0) {start = array<i64: 1>, limit = array<i64: 4>, stride = array<i64: 1>}
      : (tensor<7xf32>) -> !v
  %3 = "gradopt.slice"(%1) {start = array<i64: 2>, limit = array<i64: 5>, stride = array<i64: 1>}
      : (tensor<9xf32>) -> !v
  %4 = "gradopt.slice"(%0) {start = array<i64: 2>, limit = array<i64: 4>, stride = array<i64: 1>}
      : (tensor<7xf32>) -> tensor<2xf32>
  return %2, %3, %4 : !v, !v, tensor<2xf32>
}

// --- stack, unstack ------------------------------------------------------------------------------

// CHECK-LABEL: func.func @stack(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<2x3xf32>, [[V:%[a-z0-9]+]]: tensor<3xf32>, [[W:%[a-z0-9]+]]: tensor<3xf32>
// CHECK-NEXT:    [[R:%[a-z0-9]+]] = "gradopt.reshape"([[V]]) {shape = array<i64: 3, 1>}
// CHECK-NEXT:    return [[X]], [[R]], [[W]], [[V]]
func.func @stack(%x: !m, %v: !v, %w: !v) -> (!m, tensor<3x1xf32>, !v, !v) {
  %0:2 = "gradopt.unstack"(%x) {axis = 0 : i64} : (!m) -> (!v, !v)
  %1 = "gradopt.stack"(%0#0, %0#1) {axis = 0 : i64} : (!v, !v) -> !m
  %2 = "gradopt.stack"(%v) {axis = 1 : i64} : (!v) -> tensor<3x1xf32>
  %3 = "gradopt.stack"(%v, %w) {axis = 0 : i64} : (!v, !v) -> !m
  %4:2 = "gradopt.unstack"(%3) {axis = 0 : i64} : (!m) -> (!v, !v)
  return %1, %2, %4#1, %4#0 : !m, tensor<3x1xf32>, !v, !v
}

// In another order, only some of them, along another axis.
// CHECK-LABEL: func.func @stack_of_others(
// CHECK-COUNT-3: "gradopt.stack"
// CHECK:         return
func.func @stack_of_others(%x: !w) -> (!w, !m, !m) {
  %0:3 = "gradopt.unstack"(%x) {axis = 0 : i64}
      : (!w) -> (tensor<2xf32>, tensor<2xf32>, tensor<2xf32>)
  %1 = "gradopt.stack"(%0#0, %0#2, %0#1) {axis = 0 : i64}
      : (tensor<2xf32>, tensor<2xf32>, tensor<2xf32>) -> !w
  %2 = "gradopt.stack"(%0#0, %0#1, %0#2) {axis = 1 : i64}
      : (tensor<2xf32>, tensor<2xf32>, tensor<2xf32>) -> !m
  %3:2 = "gradopt.unstack"(%x) {axis = 1 : i64} : (!w) -> (!v, !v)
  %4 = "gradopt.stack"(%3#0, %3#0) {axis = 0 : i64} : (!v, !v) -> !m
  return %1, %2, %4 : !w, !m, !m
}

// CHECK-LABEL: func.func @unstack_of_others(
// CHECK:         "gradopt.unstack"({{%[a-z0-9]+}}) {axis = 1 : i64}
func.func @unstack_of_others(%v: tensor<2xf32>, %w: tensor<2xf32>) -> tensor<2xf32> {
  %0 = "gradopt.stack"(%v, %w) {axis = 0 : i64} : (tensor<2xf32>, tensor<2xf32>) -> tensor<2x2xf32>
  %1:2 = "gradopt.unstack"(%0) {axis = 1 : i64}
      : (tensor<2x2xf32>) -> (tensor<2xf32>, tensor<2xf32>)
  return %1#0 : tensor<2xf32>
}

// --- reductions ----------------------------------------------------------------------------------

// CHECK-LABEL: func.func @reduction(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<3xf32>, [[Y:%[a-z0-9]+]]: tensor<3x1xf32>
// CHECK-NEXT:    [[R:%[a-z0-9]+]] = "gradopt.reshape"([[Y]]) {shape = array<i64: 3>}
// CHECK-NEXT:    return [[X]], [[R]], [[R]]
func.func @reduction(%x: !v, %y: tensor<3x1xf32>) -> (!v, !v, !v) {
  %0 = "gradopt.sum"(%x) {axes = array<i64>} : (!v) -> !v
  %1 = "gradopt.mean"(%y) {axes = array<i64: 1>} : (tensor<3x1xf32>) -> !v
  %2 = "gradopt.max"(%y) {axes = array<i64: 1>} : (tensor<3x1xf32>) -> !v
  return %0, %1, %2 : !v, !v, !v
}

// Over more than one element, over an unknown extent; reductions that are more than the element.
// CHECK-LABEL: func.func @reduction_stays(
// CHECK-DAG:     "gradopt.sum"
// CHECK-DAG:     "gradopt.prod"
// CHECK-DAG:     "gradopt.norm"
// CHECK-DAG:     "gradopt.var"
// CHECK:         return
func.func @reduction_stays(%x: !m, %d: !d, %y: tensor<3x1xf32>) -> (tensor<2xf32>, !v, !v, !v) {
  %0 = "gradopt.sum"(%x) {axes = array<i64: 1>} : (!m) -> tensor<2xf32>
  %1 = "gradopt.prod"(%d) {axes = array<i64: 0>} : (!d) -> !v
  %2 = "gradopt.norm"(%y) {axes = array<i64: 1>} : (tensor<3x1xf32>) -> !v
  %3 = "gradopt.var"(%y) {axes = array<i64: 1>} : (tensor<3x1xf32>) -> !v
  return %0, %1, %2, %3 : tensor<2xf32>, !v, !v, !v
}
