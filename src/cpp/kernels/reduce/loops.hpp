// SPDX-License-Identifier: Apache-2.0
// The inner loops of the reduce kernel, one set a reduction and dtype.
//
// An accumulator is a float64 where elements are floats, else an element. Order, the same on every
// SIMD level: a row is cut into blocks; within a block, element i goes to lane i modulo the lanes;
// lanes are combined as a balanced tree, and blocks in order. Columns are added in blocks of
// kRowBlock rows in the element's type, and blocks in order.
#pragma once

#include <cstdint>

#include "base/dtype.hpp"
#include "base/simd.hpp"

namespace ngd::kernels::reduce {

enum class Reduction : std::uint8_t { Sum, Prod, Max, Min };
inline constexpr int kReductionCount = 4;
inline constexpr std::int64_t kRowBlock = 32;
inline constexpr std::int64_t kBlockBytes = 4096;  // of a row's block of floats

struct ReduceLoops {
  // accumulators[i] = the reduction of nothing.
  void (*clear)(void* accumulators, std::int64_t count);
  // *accumulator combined with `count` dense elements.
  void (*row)(const void* elements, std::int64_t count, void* accumulator);
  // accumulators[j] combined with column j of `rows` rows that lie `stride` elements apart.
  void (*columns)(const void* elements, std::int64_t rows, std::int64_t stride, std::int64_t width,
                  void* accumulators);
  // The same in pieces: partials, elements, begin a block of rows; columns are added to them; at
  // the block's end they go into the accumulators.
  void (*begin_rows)(void* partials, std::int64_t width);
  void (*add_rows)(const void* elements, std::int64_t rows, std::int64_t stride, std::int64_t width,
                   void* partials);
  void (*end_rows)(const void* partials, std::int64_t width, void* accumulators);
  // accumulators[i] combined with more[i].
  void (*merge)(void* accumulators, const void* more, std::int64_t count);
};

// By [reduction][dtype]; sums and products of bool, and two-byte floats, have null loops.
using ReduceTable = ReduceLoops[kReductionCount][kDTypeCount];

NGD_DECLARE_SIMD_LEVELS(const ReduceTable& reduce_table());

inline const ReduceTable& reduce_table() { return NGD_SIMD_SELECT(simd_level(), reduce_table)(); }

}  // namespace ngd::kernels::reduce
