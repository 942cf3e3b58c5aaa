// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// With data tiling IREE 3.13 cannot compile this with its default limits: a product and a function
// of it, both kept ("one or more operations with large vector sizes").
func.func @f(%a: tensor<512x256xf32>, %b: tensor<256x1024xf32>, %c: tensor<1024xf32>)
    -> (tensor<512x1024xf32>, tensor<512x1024xf32>) {
  %zero = arith.constant 0.0 : f32
  %out = tensor.empty() : tensor<512x1024xf32>
  %start = linalg.fill ins(%zero : f32) outs(%out : tensor<512x1024xf32>) -> tensor<512x1024xf32>
  %product = linalg.matmul ins(%a, %b : tensor<512x256xf32>, tensor<256x1024xf32>)
      outs(%start : tensor<512x1024xf32>) -> tensor<512x1024xf32>
  %sum = linalg.generic {
      indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (j)>,
                       affine_map<(i, j) -> (i, j)>],
      iterator_types = ["parallel", "parallel"]}
      ins(%product, %c : tensor<512x1024xf32>, tensor<1024xf32>) outs(%out : tensor<512x1024xf32>) {
  ^bb0(%x: f32, %y: f32, %_: f32):
    %0 = arith.addf %x, %y : f32
    linalg.yield %0 : f32
  } -> tensor<512x1024xf32>
  %positive = linalg.generic {
      indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>],
      iterator_types = ["parallel", "parallel"]}
      ins(%sum : tensor<512x1024xf32>) outs(%out : tensor<512x1024xf32>) {
  ^bb0(%x: f32, %_: f32):
    %0 = arith.maximumf %x, %zero : f32
    linalg.yield %0 : f32
  } -> tensor<512x1024xf32>
  return %sum, %positive : tensor<512x1024xf32>, tensor<512x1024xf32>
}
