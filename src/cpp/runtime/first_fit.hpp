// SPDX-License-Identifier: Apache-2.0
// Where the blocks of an arena lie.
#pragma once

#include <cstddef>
#include <vector>

namespace ngd::runtime {

// Bytes that are in use from instruction `first` to instruction `last`; bytes > 0.
struct Life {
  std::size_t first = 0, last = 0, bytes = 0;
};

// Places the blocks in turn, each at the lowest offset where its bytes are free throughout its
// life. Returns the offsets.
std::vector<std::size_t> first_fit(const std::vector<Life>& lives);

}  // namespace ngd::runtime
