// SPDX-License-Identifier: Apache-2.0
// The inner loops of the moments kernel, for f32 and f64: sums of what elements are away from a
// shift, and of its squares. Added in blocks in the elements' type, and blocks, in order, in f64;
// in the same order on every SIMD level.
#pragma once

#include <cstdint>

#include "base/simd.hpp"

namespace ngd::kernels::fallback {

struct MomentLoops {
  // *sum and *square, of `count` dense elements.
  void (*row)(const void* elements, std::int64_t count, const void* shift, double* sum,
              double* square);
  // sums[j] and squares[j], of column j of `rows` rows that lie `stride` elements apart.
  void (*columns)(const void* elements, std::int64_t rows, std::int64_t stride, std::int64_t width,
                  const void* shifts, double* sums, double* squares);
};

using MomentTable = MomentLoops[2];  // of f32, of f64

NGD_DECLARE_SIMD_LEVELS(const MomentTable& moment_table());

}  // namespace ngd::kernels::fallback
