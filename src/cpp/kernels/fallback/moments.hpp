// SPDX-License-Identifier: Apache-2.0
// The inner loops of the moments kernel, for f32 and f64: the sums of the differences of elements
// from a shift, and the sums of the squares of these differences. The sums of a block are in the
// elements' type, and blocks are added in f64. The order is the same on every SIMD level.
#pragma once

#include <cstdint>

#include "base/simd.hpp"

namespace ngd::kernels::fallback {

struct MomentLoops {
  // For each of `count` dense elements, add the difference element - *shift to *sum, and the square
  // of the difference to *square.
  void (*row)(const void* elements, std::int64_t count, const void* shift, double* sum,
              double* square);
  // For each column j < width and each of `rows` rows, add the difference element - shifts[j] to
  // sums[j], and the square of the difference to squares[j]. `stride` is the number of elements
  // from one row to the next.
  void (*columns)(const void* elements, std::int64_t rows, std::int64_t stride, std::int64_t width,
                  const void* shifts, double* sums, double* squares);
};

using MomentTable = MomentLoops[2];  // for f32, for f64

NGD_DECLARE_SIMD_LEVELS(const MomentTable& moment_table());

}  // namespace ngd::kernels::fallback
