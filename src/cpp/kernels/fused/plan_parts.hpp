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
// Return the number of bytes per element in tiles: 4 for 16-bit floats.
inline std::size_t tile_item(DType dtype) { return size_of(tile_dtype(dtype)); }

// Part 1 of the planner, the geometry: merge axes, choose tiles, and choose how inputs are read.
// item_bytes: bytes per element of the widest dtype that tiles contain.
void plan_geometry(Plan& plan, const Body& body, const KernelQuery& query, std::int64_t item_bytes);

// Part 2 of the planner: the pairs of statements that one loop computes, such as a multiplication
// and the addition that uses its value. A pair saves one pass over the tile. On a Zen 5, a body of
// 9 successive multiplications took 11.4 us for 32 Ki elements, and 9.1 us with pairs.
class Pairs {
 public:
  explicit Pairs(const Body& body);

  // One loop can compute two statements, a pair. If t is the second statement of a pair, return the
  // first one. Otherwise, return -1.
  int first_of(int t) const { return first_[static_cast<std::size_t>(t)]; }
  // Return true if statement t is the first of a pair, two statements that one loop computes. The
  // loop belongs to the second statement, so t has no loop of its own.
  bool is_first(int t) const { return second_[static_cast<std::size_t>(t)] >= 0; }
  // Return the statement whose loop computes statement t. It is t itself, or a later statement if
  // one loop computes both.
  int loop_of(int t) const { return is_first(t) ? second_[static_cast<std::size_t>(t)] : t; }

  // Return the function of the loop that computes a pair of statements. t is the second one.
  TileFunction function_of(int t) const;

 private:
  const Body& body_;
  // If one loop computes statement a and then statement b, second_[a] is b and first_[b] is a. All
  // other elements are -1.
  std::vector<int> first_, second_;
};

// Part 3 of the planner: the allocation of slots. A slot is the memory of a tile of values: a part
// of an input or output, or a buffer. A buffer is reused for another value when no later loop reads
// its value.
class Slots {
 public:
  explicit Slots(Plan& plan) : plan_(plan) {}

  // Return a new slot (the memory of one tile) that is a part of an input or output, not a buffer.
  int in_memory() { return add(-1); }
  // Return a slot whose memory is a free buffer of one tile. If no buffer is free, add a buffer and
  // its slot.
  int buffer();
  // Return the slot of a constant: a buffer of equal elements, which is filled before the first
  // tile. Equal constants share a slot.
  int constant(DType dtype, std::uint64_t bits);
  // Make the buffer of a slot free for the values of other tiles. Do nothing if the slot is a part
  // of an input or output.
  void release(int slot);

 private:
  // Add a slot (the memory of one tile), and return its number. `buffer` is the number of its
  // buffer, or -1 if the slot is a part of an input or output. Throws Refusal if there are too many
  // slots.
  int add(int buffer);

  Plan& plan_;
  std::vector<int> free_;
  std::map<std::pair<DType, std::uint64_t>, int> constants_;
  int num_buffers_ = 0;
};

// Part 4 of the planner: make one loop per statement or pair of statements, and choose the slots
// (tiles in memory) that it reads and writes.
void plan_loops(Plan& plan, const Body& body, const Pairs& pairs, const KernelQuery& query);

// Part 5 of the planner: find the outputs that may use the memory of an input.
void plan_in_place(Plan& plan, const Body& body, const Pairs& pairs);

}  // namespace ngd::kernels::fused
