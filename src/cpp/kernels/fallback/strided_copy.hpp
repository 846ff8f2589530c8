// SPDX-License-Identifier: Apache-2.0
// A copy of all elements of an array, with different strides for source and target. transpose,
// slice, pad_slice and concat use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/shape.hpp"

namespace ngd::kernels::fallback {

class StridedCopy {
 public:
  // Strides are in elements. They may be negative, and source strides may be 0. `item` is the
  // number of bytes per element: 1, 2, 4 or 8.
  StridedCopy(const Shape& shape, const Shape& source_strides, const Shape& target_strides,
              std::size_t item);

  // Copy all elements. `source` and `target` point to the elements whose indices are all 0.
  void run(const void* source, void* target) const;

 private:
  struct Axis {
    std::int64_t length, source, target;
  };
  void merge_axes(const Shape& shape, const Shape& source_strides, const Shape& target_strides);

  // Copy band number `band` of one matrix (in a transpose), or of one line along the inner axis (in
  // other copies). `source` and `target` point to the first element of this matrix or line. It is
  // divided into `bands` bands, which the threads share.
  void copy_band(const std::byte* source, std::byte* target, std::int64_t band,
                 std::int64_t bands) const;

  std::vector<Axis> outer_;  // outermost first
  Axis middle_{1, 0, 0};  // in a transpose, the axis that is dense in the source; else of length 1
  Axis inner_{1, 1, 1};
  std::int64_t outer_count_ = 1;
  bool is_transpose_ = false;  // the axis middle_ is dense in the source, inner_ in the target
  std::int64_t item_;
};

}  // namespace ngd::kernels::fallback
