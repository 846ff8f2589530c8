// SPDX-License-Identifier: Apache-2.0
// The shapes of a convolution, or of one of its two gradients. All implementations of convolutions
// construct this struct from a KernelQuery: an op with its types and attributes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/shapes/matmul_shape.hpp"
#include "kernels/shapes/windows.hpp"

namespace ngd::kernels {

// A convolution computes result[n, g * out + o, p], for sample n, group g, output channel o < out
// of the group, and position p. It is the sum, over the input channels i < in of the group and the
// kernel positions k, of
//   data[n, g * in + i, p * stride - before + k * dilation] * weights[g * out + o, i, k].
// `before` is the padding before the data, and the padding counts as 0. In the shapes of this
// struct, the channels precede the spatial axes, even if they are last in memory.
struct ConvShape : Windows {
  enum class Which { Forward, DataGrad, WeightGrad };

  Which which = Which::Forward;
  TensorType data, weights, result;
  // in, out: the channels per group of the data, and of the result
  std::int64_t batch = 0, groups = 1, in = 0, out = 0;

  bool channels_last = false;  // true: channels are the last axis of data and result in memory
  bool bias = false;           // the third operand is a bias: one value per channel of the result
  std::vector<std::string> post;  // functions that are applied to the result, in this order

  // factors: the dtype of the two multiplied operands. bias_dtype: the dtype of the bias, if any.
  DType factors = DType::F32, bias_dtype = DType::F32;
  bool mixed = false;  // the operands are 16-bit floats, and the output or the bias is f32

  std::string refusal;  // the reason why types or attributes do not fit a convolution, or empty

  explicit ConvShape(const KernelQuery& query) {
    which = query.op == "conv"             ? Which::Forward
            : query.op == "conv_data_grad" ? Which::DataGrad
                                           : Which::WeightGrad;
    data = which == Which::DataGrad ? query.outputs[0] : query.inputs[0];
    weights = which == Which::WeightGrad ? query.outputs[0] : query.inputs[1];
    result = which == Which::Forward    ? query.outputs[0]
             : which == Which::DataGrad ? query.inputs[0]
                                        : query.inputs[1];
    channels_last = query.attrs.integer("channels_last", 0) == 1;
    if (channels_last && data.shape.size() > 2 && result.shape.size() > 2)
      for (Shape* shape : {&data.shape, &result.shape})
        std::rotate(shape->begin() + 1, shape->end() - 1, shape->end());
    refusal = read(query.attrs, data.shape, result.shape, weights.shape);
    if (!refusal.empty()) return;
    const DType dtype = factors = query.inputs[0].dtype;
    if (query.inputs[1].dtype != dtype || !holds_product(query.outputs[0].dtype, dtype))
      refusal = "the dtypes differ";
    mixed = query.outputs[0].dtype != dtype;
    groups = query.attrs.integer("groups");
    if (weights.shape.size() != data.shape.size() || groups < 1 || weights.shape[0] % groups != 0 ||
        weights.shape[1] * groups != data.shape[1] || weights.shape[0] != result.shape[1] ||
        result.shape[0] != data.shape[0]) {
      refusal = "the operands differ in channels or batch size";
      return;
    }
    bias = query.inputs.size() > 2;
    if (bias) bias_dtype = query.inputs[2].dtype;
    mixed = mixed || (bias && query.inputs[2].dtype != dtype);
    if (bias && (which != Which::Forward || !holds_product(query.inputs[2].dtype, dtype) ||
                 query.inputs[2].shape != Shape{weights.shape[0]}))
      refusal = "the bias does not have one number per channel of the result";
    if (query.attrs.has("post")) post = query.attrs.texts("post");
    batch = data.shape[0];
    in = weights.shape[1];
    out = weights.shape[0] / groups;
  }
};

}  // namespace ngd::kernels
