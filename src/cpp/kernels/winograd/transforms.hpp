// SPDX-License-Identifier: Apache-2.0
// The transforms of Winograd's convolution with 3 x 3 kernels: A. Lavin and S. Gray, "Fast Algorithms
// for Convolutional Neural Networks" (CVPR 2016), section 4.1, F(4 x 4, 3 x 3).
//
// A tile of 6 x 6 positions of the data has 36 transformed values per channel, and so has each 3 x 3
// kernel. The products of both, summed over the channels, are 36 values again. Their transform is a
// tile of 4 x 4 positions of the result. The interpolation points are 0, -1/sqrt(2), 1/sqrt(2),
// -sqrt(2), sqrt(2) and infinity. ADR 42 has the rounding errors.
//
// The transformed values are 36 planes: value v of a tile is in plane v, at the same index in each.
// plane_stride: elements from one plane to the next. Channels are multiples of `lanes`.
#pragma once

#include <cstdint>

#include "base/simd.hpp"

namespace ngd::kernels::winograd {

// The positions along one side: of a tile of the result, of a tile of the data, of a kernel.
inline constexpr int kTile = 4, kInputTile = 6, kKernel = 3;
inline constexpr int kPlanes = kInputTile * kInputTile;
inline constexpr int kWeights = kKernel * kKernel;

// A tile of an image with channels last: position (i, j) is image[at + i * row + j * column]. Only
// the positions with i in [top, bottom) and j in [left, right) are in the image. The others are read
// as 0 and not written.
template <class Element>
struct Tile {
  Element* image;
  std::int64_t at, row, column;
  int top, bottom, left, right;
};

struct Transforms {
  std::int64_t lanes;
  // Transform a tile of the data, and a tile of the gradient of the result.
  void (*data)(const Tile<const float>& from, std::int64_t channels, float* to,
               std::int64_t plane_stride);
  void (*adjoint)(const Tile<const float>& from, std::int64_t channels, float* to,
                  std::int64_t plane_stride);
  // Transform sums of products to a tile of the result. bias: one element per channel, or null.
  void (*result)(const float* from, std::int64_t plane_stride, std::int64_t channels,
                 const float* bias, const Tile<float>& to);
  // Transform `lanes` kernels with `step` elements from one to the next. rotated: by 180 degrees.
  void (*weights)(const float* kernels, std::int64_t step, bool rotated, float* to,
                  std::int64_t plane_stride);
  // Transform sums to the gradients of `lanes` kernels. The sums have several parts, which are added
  // first, with part_stride elements from one to the next.
  void (*weight_adjoints)(const float* from, std::int64_t plane_stride, std::int64_t parts,
                          std::int64_t part_stride, float* kernels, std::int64_t step);
};

NGD_DECLARE_SIMD_LEVELS(const Transforms& transforms());

}  // namespace ngd::kernels::winograd
