// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// RUN: gradopt-opt %s --split-input-file --gradopt-plan-memory | filecheck %s
// RUN: gradopt-opt %s --split-input-file --gradopt-plan-memory --memory-report 2>&1 >/dev/null | filecheck %s --check-prefix REPORT

!m = tensor<64x64xf32>

// A tanh is written over the product that dies at it; the result is the caller's.

func.func @in_place(%x: !m) -> tensor<f32> {
  %a = "gradopt.dot_general"(%x, %x) {lhs_contract = array<i64: 1>, rhs_contract = array<i64: 0>} : (!m, !m) -> !m
  %b = "gradopt.tanh"(%a) : (!m) -> !m
  %y = "gradopt.sum"(%b) {axes = array<i64: 0, 1>} : (!m) -> tensor<f32>
  return %y : tensor<f32>
}

// CHECK-LABEL: func.func @in_place(
// CHECK-SAME:    gradopt.arena = {bound = 16384 : i64, size = 16384 : i64}
// CHECK:         dot_general{{.*}}gradopt.offsets = array<i64: 0>
// CHECK:         tanh{{.*}}gradopt.offsets = array<i64: 0>
// CHECK:         sum{{.*}}gradopt.offsets = array<i64: -1>

// REPORT:      Memory of @in_place: arena 16 KiB, lower bound 16 KiB, ratio 1.000, 3 steps

// -----

// A view has no offset of its own; a transpose is a copy.

!m = tensor<64x64xf32>

func.func @view(%x: !m) -> tensor<f32> {
  %a = "gradopt.transpose"(%x) {permutation = array<i64: 1, 0>} : (!m) -> !m
  %b = "gradopt.reshape"(%a) {shape = array<i64: 4096>} : (!m) -> tensor<4096xf32>
  %y = "gradopt.sum"(%b) {axes = array<i64: 0>} : (tensor<4096xf32>) -> tensor<f32>
  return %y : tensor<f32>
}

// CHECK-LABEL: func.func @view(
// CHECK:         transpose{{.*}}gradopt.offsets = array<i64: 0>
// CHECK-NOT:     reshape{{.*}}gradopt.offsets
// CHECK:         return

// -----

// A donated argument is overwritten by the result, here a sum that is added up from call to call.

!m = tensor<64x64xf32>

func.func @accumulate(%total: !m {gradopt.donated, gradopt.name = "total"}, %x: !m) -> !m {
  %a = "gradopt.dot_general"(%x, %x) {lhs_contract = array<i64: 1>, rhs_contract = array<i64: 0>} : (!m, !m) -> !m
  %y = "gradopt.add"(%total, %a) : (!m, !m) -> !m
  return %y : !m
}

// CHECK-LABEL: func.func @accumulate(
// CHECK:         dot_general{{.*}}gradopt.offsets = array<i64: 0>
// CHECK:         add{{.*}}gradopt.offsets = array<i64: -1>

// REPORT:      Memory of @accumulate:
// REPORT:      1 value is written over an operand: 'add' over argument 'total'
// REPORT:      result 0 is written over the donated argument 'total'

// -----

// It is not where another op reads it afterwards.

!m = tensor<64x64xf32>

func.func @read_later(%w: !m {gradopt.donated, gradopt.name = "w"}, %x: !m) -> (!m, !m) {
  %y = "gradopt.add"(%w, %x) : (!m, !m) -> !m
  %z = "gradopt.dot_general"(%x, %w) {lhs_contract = array<i64: 1>, rhs_contract = array<i64: 0>} : (!m, !m) -> !m
  return %y, %z : !m, !m
}

// REPORT:      Memory of @read_later:
// REPORT:      the donated argument 'w' is not written over: 'dot_general' reads the argument after

// -----

// On linalg, every user of a fill gets its own, so that it can be written over.

!m = tensor<64x64xf32>

func.func @fills(%x: !m) -> !m {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : !m
  %f = linalg.fill ins(%zero : f32) outs(%e : !m) -> !m
  %a = linalg.matmul ins(%x, %x : !m, !m) outs(%f : !m) -> !m
  %b = linalg.matmul ins(%a, %x : !m, !m) outs(%f : !m) -> !m
  %y = linalg.matmul ins(%b, %x : !m, !m) outs(%f : !m) -> !m
  return %y : !m
}

// CHECK-LABEL: func.func @fills(
// CHECK-SAME:    size = 32768 : i64
// CHECK:         linalg.fill {gradopt.offsets = array<i64: [[A:[0-9]+]]>}
// CHECK:         linalg.matmul {gradopt.offsets = array<i64: [[A]]>}
// CHECK:         linalg.fill {gradopt.offsets = array<i64: [[B:[0-9]+]]>}
// CHECK:         linalg.matmul {gradopt.offsets = array<i64: [[B]]>}
// CHECK:         linalg.fill {gradopt.offsets = array<i64: -1>}
// CHECK:         linalg.matmul {gradopt.offsets = array<i64: -1>}
