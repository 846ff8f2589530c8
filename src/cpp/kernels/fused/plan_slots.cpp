// SPDX-License-Identifier: Apache-2.0
#include "base/error.hpp"
#include "kernels/fused/plan_parts.hpp"

namespace ngd::kernels::fused {

int Slots::add(int buffer) {
  plan_.buffer_of_slot.push_back(buffer);
  if (plan_.buffer_of_slot.size() > kMaxSlots)
    throw Refusal(concat("the program needs more than ", kMaxSlots, " slots"));
  return static_cast<int>(plan_.buffer_of_slot.size()) - 1;
}

int Slots::buffer() {
  if (!free_.empty()) {
    const int slot = free_.back();
    free_.pop_back();
    return slot;
  }
  if (num_buffers_ == kMaxBuffers)
    throw Refusal(concat("the program needs more than ", kMaxBuffers, " tiles at once"));
  return add(num_buffers_++);
}

int Slots::constant(DType dtype, std::uint64_t bits) {
  const auto [entry, is_new] = constants_.try_emplace({tile_dtype(dtype), bits}, 0);
  if (is_new) {
    // The constant needs a new buffer, not one that earlier loops have used and released. Those
    // loops write to the released buffer in each tile, but a constant is stored only once, before
    // the first tile.
    std::vector<int> in_use;
    std::swap(in_use, free_);
    entry->second = buffer();
    std::swap(in_use, free_);
    plan_.constants.push_back({entry->second, tile_item(dtype), bits});
  }
  return entry->second;
}

void Slots::release(int slot) {
  if (plan_.buffer_of_slot[static_cast<std::size_t>(slot)] >= 0) free_.push_back(slot);
}

}  // namespace ngd::kernels::fused
