// SPDX-License-Identifier: Apache-2.0
// The windows of convolutions and pools: which elements of [N, C, spatial...] each result reads.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include "kernels/kernel.hpp"

namespace ngd::kernels {

// Along each axis, window number i reads the positions i * stride - before + k * dilation, for k in
// [0, kernel). Positions outside of the data are padding, and are not read.
struct Windows {
  // One number per spatial axis. If there are fewer than 3 spatial axes, axes of length 1 are added
  // before them.
  using Axes = std::array<std::int64_t, 3>;

  std::size_t axes = 0;
  Axes extents{1, 1, 1}, kernel{1, 1, 1}, counts{1, 1, 1};
  Axes strides{1, 1, 1}, before{}, after{}, dilations{1, 1, 1};

  // Set the members from the attributes and three shapes. `data` is the shape [N, C, spatial...] of
  // the data. `windows` is the shape of the result, [N, C, spatial...], whose spatial axes have one
  // element per window. `kernel_shape` ends with the spatial axes of a kernel. Return the reason if
  // the shapes do not fit each other, or an empty text if they do. If `beyond` is true, an axis may
  // have one more window than fits: the last window then ends after the padding (ceil mode of
  // pooling).
  std::string read(const Attrs& attrs, const Shape& data, const Shape& windows,
                   const Shape& kernel_shape, bool beyond = false) {
    const std::size_t rank = data.size();
    axes = rank - 2;
    if (rank < 3 || rank > 5 || windows.size() != rank || kernel_shape.size() < axes)
      return "the operands do not have 1 to 3 spatial axes";
    const auto& stride = attrs.integers("strides");
    const auto& dilation = attrs.integers("dilations");
    const auto& padding = attrs.integers("padding");
    if (stride.size() != axes || dilation.size() != axes || padding.size() != 2 * axes)
      return "an attribute does not have one number per axis";
    for (std::size_t a = 0; a < axes; ++a) {
      const std::size_t at = 3 - axes + a;
      extents[at] = data[2 + a];
      kernel[at] = kernel_shape[kernel_shape.size() - axes + a];
      counts[at] = windows[2 + a];
      strides[at] = stride[a];
      dilations[at] = dilation[a];
      before[at] = padding[2 * a];
      after[at] = padding[2 * a + 1];
      const std::int64_t span = (kernel[at] - 1) * dilations[at] + 1;
      const std::int64_t left = extents[at] + before[at] + after[at] - span;
      if (strides[at] < 1 || dilations[at] < 1 || kernel[at] < 1 || left < 0)
        return "a window is larger than the padded data";
      const std::int64_t num_extra = counts[at] - (left / strides[at] + 1);
      if (num_extra != 0 && !(beyond && num_extra == 1))
        return "the output differs from the number of windows that fit";
    }
    return {};
  }

  // Return the number of positions in one kernel, over all spatial axes. window_count() returns the
  // number of windows, and data_places() the number of positions in the data without padding.
  std::int64_t kernel_places() const { return kernel[0] * kernel[1] * kernel[2]; }
  std::int64_t window_count() const { return counts[0] * counts[1] * counts[2]; }
  std::int64_t data_places() const { return extents[0] * extents[1] * extents[2]; }
};

}  // namespace ngd::kernels
