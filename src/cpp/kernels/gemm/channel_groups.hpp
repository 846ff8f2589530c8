// SPDX-License-Identifier: Apache-2.0
// Channels as kernels that are made of the own product's tiles take them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/gemm/gemm.hpp"

namespace ngd::kernels::gemm {

// Channels in groups of nearly equal numbers of vectors, at most as many as a tile of the product.
struct Groups {
  std::int64_t vectors, lanes, count;

  Groups(std::int64_t channels, std::int64_t multiple)
      : vectors(channels / tile_of<float>().lanes), lanes(tile_of<float>().lanes) {
    const std::int64_t most = tile_of<float>().columns / lanes;
    count = (vectors + most - 1) / most;
    count = std::min(vectors, round_up(count, multiple));
  }
  std::int64_t begin(std::int64_t group) const { return vectors * group / count * lanes; }
  std::int64_t width(std::int64_t group) const { return begin(group + 1) - begin(group); }
};

}  // namespace ngd::kernels::gemm
