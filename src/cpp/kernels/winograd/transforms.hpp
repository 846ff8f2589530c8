// SPDX-License-Identifier: Apache-2.0
// The transforms of Winograd's convolution with 3 x 3 kernels: A. Lavin and S. Gray, "Fast
// Algorithms for Convolutional Neural Networks" (CVPR 2016), section 4.1, F(4 x 4, 3 x 3).
//
// The images are divided into tiles: 6 x 6 positions of the data, which give 4 x 4 positions of the
// result. A tile of the data is transformed to 36 values per channel, and so is each 3 x 3 kernel.
// The products of both, summed over the channels, are 36 values again. Their transform is the tile
// of the result. This takes 36 multiplications per channel instead of 16 * 9 = 144. The
// interpolation points are 0, -1/sqrt(2), 1/sqrt(2), -sqrt(2), sqrt(2) and infinity.
// docs/adr/0042-winograd.md has the rounding errors.
//
// The transformed values are stored in 36 planes. Value v of a tile and channel is in plane v, at
// an index that is the same in all planes. plane_stride is the number of elements from one plane to
// the next. A vector has the values of `lanes` channels. The number of channels must be a multiple
// of `lanes`.
#pragma once

#include <cstdint>

#include "base/simd.hpp"

namespace ngd::kernels::winograd {

// The numbers of positions along one side of a tile of the result (kTile), of a tile of the data
// (kInputTile), and of a kernel (kKernel).
inline constexpr int kTile = 4, kInputTile = 6, kKernel = 3;
inline constexpr int kPlanes = kInputTile * kInputTile;
inline constexpr int kWeights = kKernel * kKernel;

// A tile of an image with channels last. Position (i, j) of the tile is
// image[at + i * row + j * column]. Only the positions with i in [top, bottom) and j in
// [left, right) are in the image. Positions outside of the image are read as 0, and not written.
template <class Element>
struct Tile {
  Element* image;
  std::int64_t at, row, column;
  int top, bottom, left, right;
};

// The transforms of one SIMD level.
struct Transforms {
  std::int64_t lanes;  // channels per vector
  // data() transforms a tile of the data, and adjoint() transforms a tile of the gradient of the
  // result. Both give 36 values per channel. Value v of channel c is stored in
  // to[v * plane_stride + c].
  void (*data)(const Tile<const float>& from, std::int64_t channels, float* to,
               std::int64_t plane_stride);
  void (*adjoint)(const Tile<const float>& from, std::int64_t channels, float* to,
                  std::int64_t plane_stride);
  // Transform 36 sums of products per channel to a tile of the result. Sum v of channel c is
  // from[v * plane_stride + c]. bias: one element per channel, or null.
  void (*result)(const float* from, std::int64_t plane_stride, std::int64_t channels,
                 const float* bias, const Tile<float>& to);
  // Transform `lanes` kernels at once, one per lane of a vector, to 36 values each. Value v of
  // kernel k is stored in to[v * plane_stride + k]. `step` is the number of elements from one
  // kernel to the next. If `rotated` is true, the kernels are first rotated by 180 degrees.
  void (*weights)(const float* kernels, std::int64_t step, bool rotated, float* to,
                  std::int64_t plane_stride);
  // Transform 36 sums per kernel to the gradients of `lanes` kernels at once. `from` has `parts`
  // arrays of sums, for example one per thread. First, these arrays are added. Sum v of kernel k in
  // array p is from[p * part_stride + v * plane_stride + k]. step: elements from one kernel to the
  // next.
  void (*weight_adjoints)(const float* from, std::int64_t plane_stride, std::int64_t parts,
                          std::int64_t part_stride, float* kernels, std::int64_t step);
};

NGD_DECLARE_SIMD_LEVELS(const Transforms& transforms());

}  // namespace ngd::kernels::winograd
