// SPDX-License-Identifier: Apache-2.0
// The computation of tiles of a plan, by one thread. elementwise_plan.hpp explains plans, tiles,
// slots and loops.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bits.hpp"
#include "kernels/fused/elementwise_plan.hpp"
#include "kernels/kernel.hpp"

namespace ngd::kernels::fused {

// Prefetches the inputs of the next tile, which are assumed to follow the inputs of this tile in
// memory. After the last tile, the prefetches do no harm: a prefetch of an invalid address has no
// effect. With prefetches, ResNet-50's elementwise kernels take 0.8 times as long as without them
// (Zen 5).
//
// The prefetches are issued in parts, one before each loop of this tile. A core has few buffers for
// pending cache lines, so prefetches that are all issued at once would wait for these buffers.
// AdamW's update of 3 or 12 million float32 values takes 0.7 times as long as with all prefetches
// of a tile at once (Zen 4).
class NextTile {
 public:
  // Remove the inputs of the previous tile.
  void clear() {
    num_ranges_ = current_ = 0;
    lines_ = 0;
  }
  // Add an input. Its values for this tile are the `bytes` bytes at `tile`, and its values for the
  // next tile are assumed to follow them.
  void add(const std::byte* tile, std::int64_t bytes) {
    ranges_[num_ranges_++] = {tile + bytes, divide_up(bytes, kLine)};
    lines_ += ranges_[num_ranges_ - 1].lines;
  }
  // Divide the cache lines of the next tile into `parts` parts. Each call of prefetch_part() then
  // fetches the lines of the next part.
  void split(std::int64_t parts) { part_ = parts > 0 ? divide_up(lines_, parts) : 0; }
  void prefetch_part();

 private:
  static constexpr std::int64_t kLine = 64;
  struct Range {
    const std::byte* next;
    std::int64_t lines;
  };
  std::int64_t lines_ = 0, part_ = 0;
  int num_ranges_ = 0, current_ = 0;
  Range ranges_[kMaxSlots];
};

// Computes a kernel body (a list of elementwise statements) tile by tile, as its plan says. It has
// the buffers of one thread.
class TileWalk {
 public:
  TileWalk(const Plan& plan, const KernelArgs& args);

  // Compute the statements of the body for tile number `number`, a piece of the arrays.
  void tile(std::int64_t number);
  // Compute `count` elements, from number `begin` in row-major order on. A row is the elements
  // along the inner axis of the plan. If plan.rows_per_tile is greater than 1, the elements must be
  // whole rows, at most rows_per_tile. Otherwise, they must be a piece of one row, of at most
  // tile_length elements.
  void elements(std::int64_t begin, std::int64_t count) {
    compute(begin / plan_.inner, begin % plan_.inner, begin, count);
  }
  // Compute `count` elements, from number `begin` on, of a plan that has matrix products as inputs
  // (Reading::Given). The caller passes their values: `given` has `count` values of the first
  // product. The values of each next product begin `stride` bytes later.
  void elements(std::int64_t begin, std::int64_t count, const void* given, std::int64_t stride) {
    auto* values = static_cast<std::byte*>(const_cast<void*>(given));  // loops only read it
    for (const std::int64_t i : plan_.given) {
      slots_[plan_.inputs[static_cast<std::size_t>(i)].slot] = values;
      values += stride;
    }
    elements(begin, count);
  }
  // Return the values that the last call of tile() or elements() stored in a slot, a tile in
  // memory. `slot` is one of plan.kept, the slots that reductions read.
  const std::byte* values(int slot) const { return slots_[slot]; }

 private:
  // Compute the kernel body (the elementwise statements) for `count` elements, from column `column`
  // of row `row` on. `begin` is the number of the first element in row-major order.
  void compute(std::int64_t row, std::int64_t column, std::int64_t begin, std::int64_t count);
  // Set the slot of input i: the pointer from which loops read its values in compute(). It points
  // to the memory of the input, or to a buffer with copies of the values (see Reading).
  void read_input(std::size_t i, std::int64_t row, std::int64_t column, std::int64_t begin,
                  std::int64_t count);
  std::int64_t row_offset(const InputPlan& input, std::int64_t row) const;
  void gather(std::size_t i, std::int64_t row, std::int64_t column, std::int64_t count);

  const Plan& plan_;
  const KernelArgs& args_;
  std::int64_t current_row_ = -1;
  NextTile next_tile_;
  std::byte* slots_[kMaxSlots];
  alignas(64) std::byte buffers_[kMaxBuffers * kTileBytes];
};

}  // namespace ngd::kernels::fused
