// SPDX-License-Identifier: Apache-2.0
// The loops of the softmax kernels, over blocks of dense rows of f32 or f64. The maximum of a row
// is subtracted before the exponential, so that no exponential overflows.
#pragma once

#include <cstdint>

#include "base/simd.hpp"

namespace ngd::kernels::fused {

template <class T>
struct SoftmaxLoops {
  // Store e = exp(x - maximum of the row). Also store the maximum and the sum of e of each row.
  void (*exponentials)(const T* x, std::int64_t rows, std::int64_t length, T* e, T* maxima,
                       T* sums);
  // Store y = e * (scale[row] / sum of the row), or e / sum of the row if `scale` is null. `scale`
  // has one factor per row, such as dy in the gradient of a loss. y may be e.
  void (*divide)(const T* e, std::int64_t rows, std::int64_t length, const T* sums, const T* scale,
                 T* y);
  // Store y = (x - maximum) - log(sum). y may be x.
  void (*logarithms)(const T* x, std::int64_t rows, std::int64_t length, const T* maxima,
                     const T* sums, T* y);
};

struct SoftmaxTable {
  SoftmaxLoops<float> f32;
  SoftmaxLoops<double> f64;
};

NGD_DECLARE_SIMD_LEVELS(const SoftmaxTable& softmax_table());

}  // namespace ngd::kernels::fused
