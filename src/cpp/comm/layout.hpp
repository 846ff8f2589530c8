// SPDX-License-Identifier: Apache-2.0
// The layout of an array is its shape. The layout of a list of arrays is the dtype, size and layout
// of each array. A collective itself moves a plain sequence of elements, so ranks with different
// layouts would combine elements of different positions. Therefore the ranks compare their layouts.
// Layout::Of::Row is the layout of a plain sequence of elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.hpp"

namespace ngd::comm {

// Return a new hash of `hash` and one more value. The result depends on the order of the values.
inline std::uint64_t mix(std::uint64_t hash, std::uint64_t value) noexcept {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
  return hash ^ (hash >> 29);
}

struct Layout {
  enum class Of : std::uint8_t { Row, Shape, List };
  Of of = Of::Row;
  std::uint64_t hash = 0;                  // 0: a plain sequence of elements
  std::size_t entries = 0;                 // Shape: the number of axes; List: the number of arrays
  std::size_t known = 0;                   // the number of entries that `numbers` has
  const std::uint64_t* numbers = nullptr;  // Shape: the extents; List: entry_of() of each array
};

// Return the layout of an array. Axes of extent 1 are left out, because they do not change the
// order of the elements. `extra` is another value that the ranks must agree on, such as the axis of
// an op; 0 if the op has no such value. If at most one axis is left and `extra` is 0, the result is
// a plain sequence of elements (Of::Row), which has no hash. Then the ranks compare only the number
// of elements. `storage` has space for one number per axis, and the layout points to it.
Layout layout_of_shape(const std::int64_t* extents, int axes, std::uint64_t extra,
                       std::uint64_t* storage) noexcept;

// Return the entry of an array in the layout of a list: its element count and its dtype, packed
// into one number.
constexpr std::uint64_t entry_of(DType dtype, std::uint64_t count) noexcept {
  return count << 8 | static_cast<std::uint64_t>(dtype);
}
// Return the layout of a list of arrays. `entries` has entry_of() of each array: its element count
// and dtype. The layout points to `entries`. `hashes` has the hash of each array's own layout.
Layout layout_of_list(const std::vector<std::uint64_t>& entries,
                      const std::vector<std::uint64_t>& hashes) noexcept;

// Return a text such as "The arrays differ: rank 0 gives shape (2, 3), rank 1 shape (3, 2)". For
// long lists of arrays, the text has the lengths and the first arrays that differ.
std::string layout_difference(int rank_a, const Layout& a, int rank_b, const Layout& b);

}  // namespace ngd::comm
