// SPDX-License-Identifier: Apache-2.0
// Copies a box of elements between two places with strides of their own: what transpose, slice,
// pad_slice and concat are made of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/shape.hpp"

namespace ngd::kernels::fallback {

class StridedCopy {
 public:
  // Strides are in elements and may be negative or, for the source, zero; `item` is 1, 2, 4 or 8.
  StridedCopy(const Shape& shape, const Shape& source_strides, const Shape& target_strides,
              std::size_t item);

  // Both pointers are to the element of index zero.
  void run(const void* source, void* target) const;

 private:
  struct Axis {
    std::int64_t length, source, target;
  };
  void merge_axes(const Shape& shape, const Shape& source_strides, const Shape& target_strides);

  void copy_band(const std::byte* source, std::byte* target, std::int64_t band,
                 std::int64_t bands) const;

  std::vector<Axis> outer_;  // odometer, outermost first
  Axis middle_{1, 0, 0};     // the other axis of a transposed block
  Axis inner_{1, 1, 1};
  std::int64_t outer_count_ = 1;
  bool transposes_ = false;  // middle_ is dense in the source, inner_ in the target
  std::int64_t item_;
};

}  // namespace ngd::kernels::fallback
