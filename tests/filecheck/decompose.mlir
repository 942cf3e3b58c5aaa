// RUN: gradopt-opt %s --gradopt-decompose --split-input-file | filecheck %s
// RUN: gradopt-opt %s --gradopt-decompose=keep-lowered=true --split-input-file | filecheck %s --check-prefix=KEPT
// RUN: gradopt-opt %s --gradopt-decompose=ops=glu --split-input-file | filecheck %s --check-prefix=CHOSEN

// Every composite op, until none is left; those with a lowering of their own on request.
func.func @both(%x: tensor<2x6xf32>) -> tensor<2x3xf32> {
  %s = "gradopt.softmax"(%x) {axis = 1 : i64} : (tensor<2x6xf32>) -> tensor<2x6xf32>
  %g = "gradopt.glu"(%s) {axis = 1 : i64} : (tensor<2x6xf32>) -> tensor<2x3xf32>
  return %g : tensor<2x3xf32>
}
// CHECK-LABEL: func.func @both
// CHECK-NOT: gradopt.softmax
// CHECK: "gradopt.max"
// CHECK: "gradopt.exp"
// CHECK: "gradopt.div"
// CHECK-NOT: gradopt.glu
// CHECK: %[[A:.*]] = "gradopt.slice"
// CHECK: %[[B:.*]] = "gradopt.sigmoid"
// CHECK: "gradopt.mul"(%[[A]], %[[B]])

// KEPT-LABEL: func.func @both
// KEPT: "gradopt.softmax"
// KEPT-NOT: gradopt.glu
// KEPT: "gradopt.sigmoid"

// CHOSEN-LABEL: func.func @both
// CHOSEN: "gradopt.softmax"
// CHOSEN-NOT: gradopt.glu
// CHOSEN: "gradopt.sigmoid"

// -----

// Composite ops made of composite ops; 16-bit floats are computed in float32 and rounded once.
func.func @nested(%x: tensor<4x8xf16>, %g: tensor<8xf16>, %b: tensor<8xf16>) -> tensor<4x8xf16> {
  %y = "gradopt.layer_norm"(%x, %g, %b) : (tensor<4x8xf16>, tensor<8xf16>, tensor<8xf16>) -> tensor<4x8xf16>
  return %y : tensor<4x8xf16>
}
// CHECK-LABEL: func.func @nested
// CHECK-NOT: gradopt.layer_norm
// CHECK-NOT: gradopt.normalize
// CHECK: %[[R:.*]] = "gradopt.convert"({{.*}}) {dtype = f16}
// CHECK: return %[[R]] : tensor<4x8xf16>

// KEPT-LABEL: func.func @nested
// KEPT: "gradopt.normalize"
