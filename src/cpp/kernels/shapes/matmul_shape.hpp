// SPDX-License-Identifier: Apache-2.0
// The shapes of a matmul. All implementations of matmul construct this struct from a KernelQuery:
// an op with its types and attributes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/kernel.hpp"

namespace ngd::kernels {

// Return true if the product of elements of the dtype `factors` may be stored as elements of the
// dtype `stored`.
inline bool holds_product(DType stored, DType factors) noexcept {
  return stored == factors || (is_half(factors) && stored == DType::F32);
}

// A matmul computes out[batch, m, n] = f(a[batch, m, k] @ b[batch, k, n] + bias[n]), where f
// applies the functions of the list `post` in order. With transpose_a or transpose_b, the operand
// is stored with its last two axes exchanged. Batch axes broadcast. The entry "add" of `post` adds
// the last operand, which has the shape of the output. If the operands are 16-bit floats, the
// output, the bias and this last operand may each be f32.
struct MatmulShape {
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false, bias = false, adds = false;
  std::vector<std::string> post;  // functions that are applied to the result, in this order
  // The batch axes of the output, of A and of B. The three shapes have the same rank. An axis of
  // batch_a or batch_b has the length 1, or the length of the axis of `batch`.
  Shape batch, batch_a, batch_b;

  bool mixed = false;  // an input has another dtype than the output

  std::string refusal;  // the reason why the types do not fit a matmul; empty if they fit

  // The shape of a single product, without batch axes.
  MatmulShape(std::int64_t rows, std::int64_t columns, std::int64_t depth, bool transposed_a,
              bool transposed_b)
      : m(rows), n(columns), k(depth), transpose_a(transposed_a), transpose_b(transposed_b) {}

  explicit MatmulShape(const KernelQuery& query)
      : transpose_a(query.attrs.integer("transpose_a", 0) != 0),
        transpose_b(query.attrs.integer("transpose_b", 0) != 0) {
    const Shape& a = query.inputs[0].shape;
    const Shape& b = query.inputs[1].shape;
    const Shape& out = query.outputs[0].shape;
    if (query.attrs.has("post")) post = query.attrs.texts("post");
    adds = std::find(post.begin(), post.end(), "add") != post.end();
    bias = query.inputs.size() == (adds ? 4 : 3);
    const DType dtype = query.inputs[0].dtype;
    if (query.inputs[1].dtype != dtype) refusal = "the operands' dtypes differ";
    for (std::size_t i = 2; i < query.inputs.size(); ++i)
      if (!holds_product(query.inputs[i].dtype, dtype)) refusal = "the operands' dtypes differ";
    if (!holds_product(query.outputs[0].dtype, dtype)) refusal = "the output has another dtype";
    mixed = std::any_of(query.inputs.begin(), query.inputs.end(), [&](const TensorType& input) {
      return input.dtype != query.outputs[0].dtype;
    });
    if (a.size() < 2 || b.size() < 2 || out.size() != std::max(a.size(), b.size())) {
      refusal = "an operand has fewer than two axes, or the output another rank";
      return;
    }
    const std::size_t rank = out.size() - 2;
    m = a[a.size() - (transpose_a ? 1 : 2)];
    k = a[a.size() - (transpose_a ? 2 : 1)];
    n = b[b.size() - (transpose_b ? 2 : 1)];
    if (b[b.size() - (transpose_b ? 1 : 2)] != k) refusal = "the inner lengths differ";
    if (out[rank] != m || out[rank + 1] != n) refusal = "the output has another shape";
    if (adds && query.inputs.back().shape != out)
      refusal = "the addend differs from the output in shape";
    if (bias && query.inputs[2].shape != Shape{n}) refusal = "the bias does not have n elements";
    batch.assign(out.begin(), out.end() - 2);
    batch_a = batch_of(a, rank);
    batch_b = batch_of(b, rank);
    for (std::size_t axis = 0; axis < rank; ++axis)
      if ((batch_a[axis] != 1 && batch_a[axis] != batch[axis]) ||
          (batch_b[axis] != 1 && batch_b[axis] != batch[axis]))
        refusal = "the batch axes do not broadcast to the output's";
  }

 private:
  // Return the batch axes of an operand, all except the last two. Axes of length 1 are added in
  // front, so that there are `rank` axes.
  static Shape batch_of(const Shape& shape, std::size_t rank) {
    Shape batch(rank + 2 - shape.size(), 1);
    batch.insert(batch.end(), shape.begin(), shape.end() - 2);
    return batch;
  }
};

}  // namespace ngd::kernels
