// SPDX-License-Identifier: Apache-2.0
// The parts of the planner, which makes a Plan. They are in the order in which Plan's constructor
// runs them, and each part sets some members of the plan. elementwise_plan.hpp explains statements,
// tiles, slots and loops.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "kernels/fused/elementwise_plan.hpp"

namespace ngd::kernels::fused {

// Return the dtype in which tiles contain elements of a dtype: float32 for 16-bit floats.
inline DType tile_dtype(DType dtype) { return is_half(dtype) ? DType::F32 : dtype; }
inline std::size_t tile_item(DType dtype) { return size_of(tile_dtype(dtype)); }

// 1. Geometry: merge axes, choose tiles, and choose how inputs are read. item_bytes: the size of
// the largest elements in tiles.
void plan_geometry(Plan& plan, const Body& body, const KernelQuery& query, std::int64_t item_bytes);

// 2. Pairs: two statements that one loop computes, which saves a pass over the tile. On a Zen 5,
// 9 successive multiplications of 32 Ki elements took 11.4 us, and 9.1 us in pairs.
class Pairs {
 public:
  explicit Pairs(const Body& body);

  // Return the first statement of the pair whose second statement is t, or -1 if there is no such
  // pair.
  int first_of(int t) const { return first_[static_cast<std::size_t>(t)]; }
  // Return true if t is the first statement of a pair. The loop of the pair's second statement then
  // computes both.
  bool is_first(int t) const { return second_[static_cast<std::size_t>(t)] >= 0; }
  // Return the statement whose loop computes statement t: the second of its pair, or t itself.
  int loop_of(int t) const { return is_first(t) ? second_[static_cast<std::size_t>(t)] : t; }

  // Return the function that computes both statements of the pair whose second statement is t.
  TileFunction function_of(int t) const;

 private:
  const Body& body_;
  std::vector<int> first_, second_;  // by statement: the other one of its pair, or -1
};

// 3. Slots: the allocation of buffers. A buffer is reused for another value when no later loop
// reads its value.
class Slots {
 public:
  explicit Slots(Plan& plan) : plan_(plan) {}

  // Return a new slot for the memory of an input or output.
  int in_memory() { return add(-1); }
  // Return a slot with a buffer that is free, or with a new buffer.
  int buffer();
  // Return the slot of a constant. The slot's buffer is filled with the constant before the first
  // tile.
  int constant(DType dtype, std::uint64_t bits);
  // Make the buffer of a slot free for other values. A slot that is the memory of an input or
  // output is ignored.
  void release(int slot);

 private:
  int add(int buffer);

  Plan& plan_;
  std::vector<int> free_;
  std::map<std::pair<DType, std::uint64_t>, int> constants_;
  int num_buffers_ = 0;
};

// 4. Loops: make one loop per statement or pair, and choose its slots.
void plan_loops(Plan& plan, const Body& body, const Pairs& pairs, const KernelQuery& query);

// 5. In place: find the outputs that may use the memory of an input.
void plan_in_place(Plan& plan, const Body& body, const Pairs& pairs);

}  // namespace ngd::kernels::fused
