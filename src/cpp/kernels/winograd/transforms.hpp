// SPDX-License-Identifier: Apache-2.0
// The transforms of the convolution by 3 x 3 kernels after S. Winograd, as in A. Lavin and S. Gray,
// "Fast Algorithms for Convolutional Neural Networks" (CVPR 2016), section 4.1, F(4 x 4, 3 x 3): of
// 6 x 6 places of the data, 36 values of each channel; of kernels as many; their products, summed
// over the channels, give 4 x 4 places of the result. With the points 0, -1/sqrt(2), 1/sqrt(2),
// -sqrt(2), sqrt(2) and infinity; ADR 42 says what that rounds.
//
// Value number v of a tile lies `apart` elements behind number v - 1. Channels: multiples of `lanes`.
#pragma once

#include <cstdint>

#include "base/simd.hpp"

namespace ngd::kernels::winograd {

inline constexpr int kTile = 4, kReach = 6, kKernel = 3;  // places a side: of result, data, kernels
inline constexpr int kValues = kReach * kReach;
inline constexpr int kWeights = kKernel * kKernel;

// A tile of an image whose channels come last: place (i, j) is at[i * row + j * column]. Those inside
// of the image are i in [top, bottom), j in [left, right); others are read as 0, and not written.
template <class Element>
struct Tile {
  Element* image;
  std::int64_t at, row, column;
  int top, bottom, left, right;
};

struct Transforms {
  std::int64_t lanes;
  // Values of the data of a tile, and of a result's adjoint.
  void (*data)(const Tile<const float>& from, std::int64_t channels, float* to, std::int64_t apart);
  void (*adjoint)(const Tile<const float>& from, std::int64_t channels, float* to,
                  std::int64_t apart);
  // The result, of sums of products; bias: of each channel, or null.
  void (*result)(const float* from, std::int64_t apart, std::int64_t channels, const float* bias,
                 const Tile<float>& to);
  // Values of `lanes` kernels, which lie `step` elements apart. turned: by half a turn.
  void (*weights)(const float* kernels, std::int64_t step, bool turned, float* to,
                  std::int64_t apart);
  // The adjoints of `lanes` kernels, of values that are sums of so many parts, `next` elements apart.
  void (*weight_adjoints)(const float* from, std::int64_t apart, std::int64_t parts,
                          std::int64_t next, float* kernels, std::int64_t step);
};

NGD_DECLARE_SIMD_LEVELS(const Transforms& transforms());

}  // namespace ngd::kernels::winograd
