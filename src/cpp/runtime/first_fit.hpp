// SPDX-License-Identifier: Apache-2.0
// Allocates the blocks of an arena at compile time.
#pragma once

#include <cstddef>
#include <vector>

namespace ngd::runtime {

// Bytes that are in use from instruction `first` to instruction `last`; bytes > 0.
struct Life {
  std::size_t first = 0, last = 0, bytes = 0;
};

// Place the blocks in the given order, each at the lowest offset where its bytes are free during
// its life. Return the offsets.
std::vector<std::size_t> first_fit(const std::vector<Life>& lives);

}  // namespace ngd::runtime
