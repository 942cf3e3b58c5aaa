// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// RUN: gradopt-opt %s --gradopt-simplify | filecheck %s

// Contractions and scattered sums, a function a rule, and what looks alike and must stay.

!a = tensor<8x2xf32>
!b = tensor<2x9xf32>
!y = tensor<8x9xf32>
!t = tensor<100x4xf32>
!i = tensor<3xi32>
!u = tensor<3x4xf32>
!m = tensor<2x3xf32>
!n = tensor<2x4xf32>

// --- transposed operands -------------------------------------------------------------------------

// CHECK-LABEL: func.func @transposed_operands(
// CHECK-SAME:    [[A:%[a-z0-9]+]]: tensor<2x8xf32>, [[B:%[a-z0-9]+]]: tensor<9x2xf32>
// CHECK-NEXT:    [[Y:%[a-z0-9]+]] = "gradopt.dot_general"([[A]], [[B]])
// CHECK-SAME:      {lhs_contract = array<i64: 0>, rhs_contract = array<i64: 1>}
// CHECK-NEXT:    return [[Y]]
func.func @transposed_operands(%a: tensor<2x8xf32>, %b: tensor<9x2xf32>) -> !y {
  %0 = "gradopt.transpose"(%a) {permutation = array<i64: 1, 0>} : (tensor<2x8xf32>) -> !a
  %1 = "gradopt.transpose"(%b) {permutation = array<i64: 1, 0>} : (tensor<9x2xf32>) -> !b
  %2 = "gradopt.dot_general"(%0, %1) {lhs_contract = array<i64: 1>, rhs_contract = array<i64: 0>}
      : (!a, !b) -> !y
  return %2 : !y
}

// Batch axes are renumbered too.
// CHECK-LABEL: func.func @transposed_batch(
// CHECK-SAME:    [[A:%[a-z0-9]+]]: tensor<2x5x3xf32>, [[B:%[a-z0-9]+]]: tensor<5x2x4xf32>
// CHECK-NEXT:    [[Y:%[a-z0-9]+]] = "gradopt.dot_general"([[A]], [[B]])
// CHECK-SAME:      lhs_batch = array<i64: 1>, lhs_contract = array<i64: 0>,
// CHECK-SAME:      rhs_batch = array<i64: 0>, rhs_contract = array<i64: 1>
// CHECK-NEXT:    return [[Y]]
func.func @transposed_batch(%a: tensor<2x5x3xf32>, %b: tensor<5x2x4xf32>) -> tensor<5x3x4xf32> {
  %0 = "gradopt.transpose"(%a) {permutation = array<i64: 1, 2, 0>}
      : (tensor<2x5x3xf32>) -> tensor<5x3x2xf32>
  %1 = "gradopt.dot_general"(%0, %b) {lhs_batch = array<i64: 0>, lhs_contract = array<i64: 2>,
      rhs_batch = array<i64: 0>, rhs_contract = array<i64: 1>}
      : (tensor<5x3x2xf32>, tensor<5x2x4xf32>) -> tensor<5x3x4xf32>
  return %1 : tensor<5x3x4xf32>
}

// The order of free axes is that of the result: it cannot be changed by a contraction.
// CHECK-LABEL: func.func @transposed_free_axes(
// CHECK-SAME:    [[A:%[a-z0-9]+]]: tensor<4x8x2xf32>, [[B:%[a-z0-9]+]]: tensor<2x9xf32>
// CHECK-NEXT:    [[T:%[a-z0-9]+]] = "gradopt.transpose"([[A]])
// CHECK-NEXT:    "gradopt.dot_general"([[T]], [[B]])
func.func @transposed_free_axes(%a: tensor<4x8x2xf32>, %b: !b) -> tensor<8x4x9xf32> {
  %0 = "gradopt.transpose"(%a) {permutation = array<i64: 1, 0, 2>}
      : (tensor<4x8x2xf32>) -> tensor<8x4x2xf32>
  %1 = "gradopt.dot_general"(%0, %b) {lhs_contract = array<i64: 2>, rhs_contract = array<i64: 0>}
      : (tensor<8x4x2xf32>, !b) -> tensor<8x4x9xf32>
  return %1 : tensor<8x4x9xf32>
}

// --- sums of products ----------------------------------------------------------------------------

// CHECK-LABEL: func.func @sum_of_products(
// CHECK-SAME:    [[A:%[a-z0-9]+]]: tensor<8x2xf32>, [[B:%[a-z0-9]+]]: tensor<2x9xf32>,
// CHECK-SAME:    [[C:%[a-z0-9]+]]: tensor<8x3xf32>, [[D:%[a-z0-9]+]]: tensor<3x9xf32>
// CHECK-NEXT:    [[L:%[a-z0-9]+]] = "gradopt.concat"([[A]], [[C]]) {axis = 1 : i64}
// CHECK-NEXT:    [[R:%[a-z0-9]+]] = "gradopt.concat"([[B]], [[D]]) {axis = 0 : i64}
// CHECK-NEXT:    [[Y:%[a-z0-9]+]] = "gradopt.dot_general"([[L]], [[R]])
// CHECK-NEXT:    return [[Y]]
func.func @sum_of_products(%a: !a, %b: !b, %c: tensor<8x3xf32>, %d: tensor<3x9xf32>) -> !y {
  %0 = "gradopt.dot_general"(%a, %b) {lhs_contract = array<i64: 1>, rhs_contract = array<i64: 0>}
      : (!a, !b) -> !y
  %1 = "gradopt.dot_general"(%c, %d) {lhs_contract = array<i64: 1>, rhs_contract = array<i64: 0>}
      : (tensor<8x3xf32>, tensor<3x9xf32>) -> !y
  %2 = "gradopt.add"(%0, %1) : (!y, !y) -> !y
  return %2 : !y
}

// One of the products is used otherwise.
// CHECK-LABEL: func.func @sum_of_used_products(
// CHECK-COUNT-2: "gradopt.dot_general"
// CHECK:         "gradopt.add"
func.func @sum_of_used_products(%a: !a, %b: !b, %c: !a) -> (!y, !y) {
  %0 = "gradopt.dot_general"(%a, %b) {lhs_contract = array<i64: 1>, rhs_contract = array<i64: 0>}
      : (!a, !b) -> !y
  %1 = "gradopt.dot_general"(%c, %b) {lhs_contract = array<i64: 1>, rhs_contract = array<i64: 0>}
      : (!a, !b) -> !y
  %2 = "gradopt.add"(%0, %1) : (!y, !y) -> !y
  return %1, %2 : !y, !y
}

// Joining long operands costs more than adding a small result.
// CHECK-LABEL: func.func @sum_of_long_products(
// CHECK-NOT:     gradopt.concat
// CHECK:         "gradopt.add"
func.func @sum_of_long_products(%a: tensor<2x50xf32>, %b: tensor<50x2xf32>, %c: tensor<2x50xf32>)
    -> tensor<2x2xf32> {
  %0 = "gradopt.dot_general"(%a, %b) {lhs_contract = array<i64: 1>, rhs_contract = array<i64: 0>}
      : (tensor<2x50xf32>, tensor<50x2xf32>) -> tensor<2x2xf32>
  %1 = "gradopt.dot_general"(%c, %b) {lhs_contract = array<i64: 1>, rhs_contract = array<i64: 0>}
      : (tensor<2x50xf32>, tensor<50x2xf32>) -> tensor<2x2xf32>
  %2 = "gradopt.add"(%0, %1) : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
  return %2 : tensor<2x2xf32>
}

// Contracted over several axes.
// CHECK-LABEL: func.func @sum_of_other_products(
// CHECK-NOT:     gradopt.concat
// CHECK:         "gradopt.add"
func.func @sum_of_other_products(%a: !a, %b: !b, %c: tensor<8x2x2xf32>, %d: tensor<2x2x9xf32>)
    -> !y {
  %0 = "gradopt.dot_general"(%a, %b) {lhs_contract = array<i64: 1>, rhs_contract = array<i64: 0>}
      : (!a, !b) -> !y
  %1 = "gradopt.dot_general"(%c, %d) {
      lhs_contract = array<i64: 1, 2>, rhs_contract = array<i64: 0, 1>}
      : (tensor<8x2x2xf32>, tensor<2x2x9xf32>) -> !y
  %2 = "gradopt.add"(%0, %1) : (!y, !y) -> !y
  return %2 : !y
}

// What a stack has in another order is read there: products of a recurrence, summed up backwards,
// and the gradient of what was unstacked for it.
// CHECK-LABEL: func.func @stacked_products(
// CHECK-SAME:    [[A:%[a-z0-9]+]]: tensor<2x3xf32>, [[B:%[a-z0-9]+]]: tensor<2x3xf32>, [[C:%[a-z0-9]+]]: tensor<2x3xf32>,
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<2x4xf32>, [[Y:%[a-z0-9]+]]: tensor<2x4xf32>, [[Z:%[a-z0-9]+]]: tensor<2x4xf32>
// CHECK-NEXT:    [[S:%[a-z0-9]+]] = "gradopt.stack"([[X]], [[Y]], [[Z]]) {axis = 0 : i64}
// CHECK-NEXT:    [[R:%[a-z0-9]+]] = "gradopt.reshape"([[S]]) {shape = array<i64: 6, 4>}
// CHECK-NEXT:    [[T:%[a-z0-9]+]] = "gradopt.stack"([[A]], [[B]], [[C]]) {axis = 0 : i64}
// CHECK-NEXT:    [[L:%[a-z0-9]+]] = "gradopt.reshape"([[T]]) {shape = array<i64: 6, 3>}
// CHECK-NEXT:    [[P:%[a-z0-9]+]] = "gradopt.dot_general"([[L]], [[R]])
// CHECK-NEXT:    return [[S]], [[P]]
func.func @stacked_products(%a: !m, %b: !m, %c: !m, %x: !n, %y: !n, %z: !n)
    -> (tensor<3x2x4xf32>, tensor<3x4xf32>) {
  %s = "gradopt.stack"(%x, %y, %z) {axis = 0 : i64} : (!n, !n, !n) -> tensor<3x2x4xf32>
  %0 = "gradopt.concat"(%c, %b) {axis = 0 : i64} : (!m, !m) -> tensor<4x3xf32>
  %1 = "gradopt.concat"(%0, %a) {axis = 0 : i64} : (tensor<4x3xf32>, !m) -> tensor<6x3xf32>
  %2 = "gradopt.concat"(%z, %y) {axis = 0 : i64} : (!n, !n) -> tensor<4x4xf32>
  %3 = "gradopt.concat"(%2, %x) {axis = 0 : i64} : (tensor<4x4xf32>, !n) -> tensor<6x4xf32>
  %4 = "gradopt.dot_general"(%1, %3) {lhs_contract = array<i64: 0>, rhs_contract = array<i64: 0>}
      : (tensor<6x3xf32>, tensor<6x4xf32>) -> tensor<3x4xf32>
  return %s, %4 : tensor<3x2x4xf32>, tensor<3x4xf32>
}

// The left side is what is stacked, along its second axis, after the product.
// CHECK-LABEL: func.func @stacked_left(
// CHECK-SAME:    [[A:%[a-z0-9]+]]: tensor<2x3xf32>, [[B:%[a-z0-9]+]]: tensor<2x3xf32>,
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<3x4xf32>, [[Y:%[a-z0-9]+]]: tensor<3x4xf32>
// CHECK-NEXT:    [[S:%[a-z0-9]+]] = "gradopt.stack"([[B]], [[A]]) {axis = 1 : i64}
// CHECK-NEXT:    [[L:%[a-z0-9]+]] = "gradopt.reshape"([[S]]) {shape = array<i64: 2, 6>}
// CHECK-NEXT:    [[R:%[a-z0-9]+]] = "gradopt.concat"([[Y]], [[X]]) {axis = 0 : i64}
// CHECK-NEXT:    "gradopt.dot_general"([[L]], [[R]])
func.func @stacked_left(%a: !m, %b: !m, %x: tensor<3x4xf32>, %y: tensor<3x4xf32>)
    -> (tensor<2x2x3xf32>, tensor<2x4xf32>) {
  %0 = "gradopt.concat"(%a, %b) {axis = 1 : i64} : (!m, !m) -> tensor<2x6xf32>
  %1 = "gradopt.concat"(%x, %y) {axis = 0 : i64}
      : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<6x4xf32>
  %2 = "gradopt.dot_general"(%0, %1) {lhs_contract = array<i64: 1>, rhs_contract = array<i64: 0>}
      : (tensor<2x6xf32>, tensor<6x4xf32>) -> tensor<2x4xf32>
  %s = "gradopt.stack"(%b, %a) {axis = 1 : i64} : (!m, !m) -> tensor<2x2x3xf32>
  return %s, %2 : tensor<2x2x3xf32>, tensor<2x4xf32>
}

// Stacked along another axis, or of more.
// CHECK-LABEL: func.func @stacked_otherwise(
// CHECK-COUNT-2: "gradopt.concat"
// CHECK:         "gradopt.dot_general"
func.func @stacked_otherwise(%a: !m, %b: !m, %x: !n, %y: !n)
    -> (tensor<2x2x4xf32>, tensor<3x2x4xf32>, tensor<3x4xf32>) {
  %s = "gradopt.stack"(%x, %y) {axis = 1 : i64} : (!n, !n) -> tensor<2x2x4xf32>
  %t = "gradopt.stack"(%x, %y, %x) {axis = 0 : i64} : (!n, !n, !n) -> tensor<3x2x4xf32>
  %0 = "gradopt.concat"(%a, %b) {axis = 0 : i64} : (!m, !m) -> tensor<4x3xf32>
  %1 = "gradopt.concat"(%x, %y) {axis = 0 : i64} : (!n, !n) -> tensor<4x4xf32>
  %2 = "gradopt.dot_general"(%0, %1) {lhs_contract = array<i64: 0>, rhs_contract = array<i64: 0>}
      : (tensor<4x3xf32>, tensor<4x4xf32>) -> tensor<3x4xf32>
  return %s, %t, %2 : tensor<2x2x4xf32>, tensor<3x2x4xf32>, tensor<3x4xf32>
}

// Of unknown extents.
// CHECK-LABEL: func.func @stacked_unknown(
// CHECK-COUNT-2: "gradopt.concat"
// CHECK:         "gradopt.dot_general"
func.func @stacked_unknown(%a: tensor<?x3xf32>, %b: tensor<?x3xf32>, %x: tensor<?x4xf32>, %y: tensor<?x4xf32>)
    -> (tensor<2x?x4xf32>, tensor<3x4xf32>) {
  %s = "gradopt.stack"(%x, %y) {axis = 0 : i64}
      : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<2x?x4xf32>
  %0 = "gradopt.concat"(%a, %b) {axis = 0 : i64}
      : (tensor<?x3xf32>, tensor<?x3xf32>) -> tensor<?x3xf32>
  %1 = "gradopt.concat"(%x, %y) {axis = 0 : i64}
      : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  %2 = "gradopt.dot_general"(%0, %1) {lhs_contract = array<i64: 0>, rhs_contract = array<i64: 0>}
      : (tensor<?x3xf32>, tensor<?x4xf32>) -> tensor<3x4xf32>
  return %s, %2 : tensor<2x?x4xf32>, tensor<3x4xf32>
}

// --- scattered sums ------------------------------------------------------------------------------

// CHECK-LABEL: func.func @add_scattered(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<100x4xf32>, [[I:%[a-z0-9]+]]: tensor<3xi32>, [[U:%[a-z0-9]+]]: tensor<3x4xf32>
// CHECK-NOT:     gradopt.add"
// CHECK:         [[Y:%[a-z0-9]+]] = "gradopt.scatter_add"([[X]], [[I]], [[U]])
// CHECK-NEXT:    return [[Y]]
func.func @add_scattered(%x: !t, %i: !i, %u: !u) -> !t {
  %z = "gradopt.constant"() {value = dense<0.0> : !t} : () -> !t
  %0 = "gradopt.scatter_add"(%z, %i, %u) : (!t, !i, !u) -> !t
  %1 = "gradopt.add"(%0, %x) : (!t, !t) -> !t
  return %1 : !t
}

// A step of gradient descent on an embedding: only the rows that were read are touched.
// CHECK-LABEL: func.func @subtract_scaled_scattered(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<100x4xf32>, [[I:%[a-z0-9]+]]: tensor<3xi32>, [[U:%[a-z0-9]+]]: tensor<3x4xf32>
// CHECK-NOT:     gradopt.sub
// CHECK:         [[C:%[a-z0-9]+]] = "gradopt.constant"() {value = dense<1.0{{0*}}e-01> : tensor<3x4xf32>}
// CHECK:         [[S:%[a-z0-9]+]] = "gradopt.mul"([[U]], [[C]])
// CHECK-NEXT:    [[N:%[a-z0-9]+]] = "gradopt.neg"([[S]])
// CHECK-NEXT:    [[Y:%[a-z0-9]+]] = "gradopt.scatter_add"([[X]], [[I]], [[N]])
// CHECK-NEXT:    return [[Y]]
func.func @subtract_scaled_scattered(%x: !t, %i: !i, %u: !u) -> !t {
  %z = "gradopt.constant"() {value = dense<0.0> : !t} : () -> !t
  %c = "gradopt.constant"() {value = dense<0.1> : !t} : () -> !t
  %0 = "gradopt.scatter_add"(%z, %i, %u) : (!t, !i, !u) -> !t
  %1 = "gradopt.mul"(%c, %0) : (!t, !t) -> !t
  %2 = "gradopt.sub"(%x, %1) : (!t, !t) -> !t
  return %2 : !t
}

// Subtracted from; scattered into something else than zeros; used otherwise; scaled by infinity,
// which makes NaN of the zeros.
// CHECK-LABEL: func.func @scattered_stays(
// CHECK-SAME:    [[X:%[a-z0-9]+]]: tensor<100x4xf32>
// CHECK-DAG:     [[A:%[a-z0-9]+]] = "gradopt.sub"({{%[a-z0-9]+}}, [[X]])
// CHECK-DAG:     [[B:%[a-z0-9]+]] = "gradopt.add"({{%[a-z0-9]+}}, [[X]])
// CHECK-DAG:     [[C:%[a-z0-9]+]] = "gradopt.add"([[X]], {{%[a-z0-9]+}})
// CHECK-DAG:     [[D:%[a-z0-9]+]] = "gradopt.mul"(
// CHECK:         return [[A]], [[B]], {{%[a-z0-9]+}}, [[C]], [[D]]
func.func @scattered_stays(%x: !t, %i: !i, %u: !u) -> (!t, !t, !t, !t, !t) {
  %z = "gradopt.constant"() {value = dense<0.0> : !t} : () -> !t
  %c = "gradopt.constant"() {value = dense<0x7F800000> : !t} : () -> !t
  %j = "gradopt.neg"(%i) : (!i) -> !i
  %k = "gradopt.abs"(%i) : (!i) -> !i
  %0 = "gradopt.scatter_add"(%z, %i, %u) : (!t, !i, !u) -> !t
  %1 = "gradopt.sub"(%0, %x) : (!t, !t) -> !t
  %2 = "gradopt.scatter_add"(%x, %i, %u) : (!t, !i, !u) -> !t
  %3 = "gradopt.add"(%2, %x) : (!t, !t) -> !t
  %4 = "gradopt.scatter_add"(%z, %j, %u) : (!t, !i, !u) -> !t
  %5 = "gradopt.add"(%x, %4) : (!t, !t) -> !t
  %6 = "gradopt.scatter_add"(%z, %k, %u) : (!t, !i, !u) -> !t
  %7 = "gradopt.mul"(%6, %c) : (!t, !t) -> !t
  return %1, %3, %4, %5, %7 : !t, !t, !t, !t, !t
}
