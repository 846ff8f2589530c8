// SPDX-License-Identifier: Apache-2.0
// Chooses the byte offset of each block in an arena, the planned memory of a step. The compiler
// calls this once per arena.
#pragma once

#include <cstddef>
#include <vector>

namespace ngd::runtime {

// A block of `bytes` > 0 bytes that is in use from instruction `first` to instruction `last`, both
// included.
struct Life {
  std::size_t first = 0, last = 0, bytes = 0;
};

// Return the offset of each block. The blocks are placed in the given order, each at the lowest
// offset at which its bytes are free during its life.
std::vector<std::size_t> first_fit(const std::vector<Life>& lives);

}  // namespace ngd::runtime
