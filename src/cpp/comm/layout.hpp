// SPDX-License-Identifier: Apache-2.0
// What an array is beside its elements in a row, or a list of arrays beside those of all of them.
// The ranks must agree on it: else each would combine its elements with some that stand elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.hpp"

namespace ngd::comm {

inline std::uint64_t mix(std::uint64_t hash, std::uint64_t value) noexcept {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
  return hash ^ (hash >> 29);
}

struct Layout {
  enum class Of : std::uint8_t { Row, Shape, List };
  Of of = Of::Row;
  std::uint64_t hash = 0;                  // 0: a row of elements
  std::size_t entries = 0;                 // axes, or arrays of the list
  std::size_t known = 0;                   // of these, how many are in `numbers`
  const std::uint64_t* numbers = nullptr;  // extents; of a list, entry_of() of each array
};

// Of an array. Extents of 1 move no element and are left out; with fewer than two others it is a
// row. `more` is what else the ranks must agree on, an axis for instance, and makes it none; 0 =
// nothing. `room` is for as many numbers as there are axes.
Layout layout_of_shape(const std::int64_t* extents, int axes, std::uint64_t more,
                       std::uint64_t* room) noexcept;

constexpr std::uint64_t entry_of(DType dtype, std::uint64_t count) noexcept {
  return count << 8 | static_cast<std::uint64_t>(dtype);
}
// Of a list with these entries, whose arrays' own layouts have these hashes.
Layout layout_of_list(const std::vector<std::uint64_t>& entries,
                      const std::vector<std::uint64_t>& hashes) noexcept;

// "rank 0 gives shape (2, 3), rank 1 shape (3, 2)"; of long lists the lengths and the first arrays
// that differ.
std::string layout_difference(int rank_a, const Layout& a, int rank_b, const Layout& b);

}  // namespace ngd::comm
