// SPDX-License-Identifier: Apache-2.0
// Splits channels into groups that are no wider than one GEMM tile.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/bits.hpp"
#include "device/team.hpp"
#include "kernels/gemm/tile.hpp"

namespace ngd::kernels::gemm {

// A division of channels into groups. Each group has a whole number of SIMD vectors of channels,
// and these numbers differ by at most 1.
struct ChannelGroups {
  std::int64_t vectors, lanes, count;

  // Divide the channels into groups of whole SIMD vectors. A vector has tile.lanes channels, and a
  // group has at most as many channels as a GEMM tile has columns. The number of groups is the
  // smallest possible multiple of `multiple`. A caller may pass its number of threads, so that all
  // threads get equally many groups. If this number is larger than the number of vectors, each
  // vector is a group.
  ChannelGroups(std::int64_t channels, std::int64_t multiple, const GemmTile<float>& tile)
      : vectors(channels / tile.lanes), lanes(tile.lanes) {
    const std::int64_t max_vectors = tile.columns / lanes;
    count = std::min(vectors, round_up(divide_up(vectors, max_vectors), multiple));
  }
  // Return the first channel of a group. width() returns the number of its channels.
  std::int64_t begin(std::int64_t group) const { return share_of(group).begin * lanes; }
  std::int64_t width(std::int64_t group) const { return share_of(group).size() * lanes; }

 private:
  // Return the range of a group's channels, counted in SIMD vectors of `lanes` channels.
  device::Range share_of(std::int64_t group) const {
    return device::share(vectors, 1, group, count);
  }
};

}  // namespace ngd::kernels::gemm
