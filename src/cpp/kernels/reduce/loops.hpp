// SPDX-License-Identifier: Apache-2.0
// The inner loops of the reduce kernels, one set per reduction and dtype.
//
// The accumulator of floats is a float64, and that of other elements has their dtype. The order is
// the same on every SIMD level. If the last axis is reduced, a row of floats is divided into blocks
// of kBlockBytes. A block is reduced by a lane tree (tiles/lane_tree.hpp), and the results of
// blocks are added to the row's accumulator in order. If the last axis is kept, each column has an
// accumulator, and the rows are divided into blocks of kRowBlock rows. Each column of a block is
// reduced in the element's type, and the results are added to the accumulators in order.
#pragma once

#include <cstdint>

#include "base/dtype.hpp"
#include "base/simd.hpp"

namespace ngd::kernels::reduce {

enum class Reduction : std::uint8_t { Sum, Prod, Max, Min };
inline constexpr int kReductionCount = 4;
inline constexpr std::int64_t kRowBlock = 32;
inline constexpr std::int64_t kBlockBytes = 4096;  // of a block of a row of floats

struct ReduceLoops {
  // Set accumulators to the value of a reduction of no elements, such as 0 for a sum.
  void (*clear)(void* accumulators, std::int64_t count);
  // Combine an accumulator with `count` dense elements.
  void (*row)(const void* elements, std::int64_t count, void* accumulator);
  // Combine accumulators[j] with column j of `rows` rows. `stride` is the number of elements from
  // one row to the next.
  void (*columns)(const void* elements, std::int64_t rows, std::int64_t stride, std::int64_t width,
                  void* accumulators);
  // The same as `columns`, for a block of rows that is given in several calls: begin_rows at the
  // beginning of the block, add_rows for some of its rows, and end_rows at the end, which combines
  // the partial results with the accumulators. `partials` has one partial result per column, in the
  // elements' type.
  void (*begin_rows)(void* partials, std::int64_t width);
  void (*add_rows)(const void* elements, std::int64_t rows, std::int64_t stride, std::int64_t width,
                   void* partials);
  void (*end_rows)(const void* partials, std::int64_t width, void* accumulators);
  // Combine accumulators[i] with more[i], for i < count.
  void (*merge)(void* accumulators, const void* more, std::int64_t count);
};

// The loops by [reduction][dtype]. They are null for 16-bit floats, which the callers widen to f32,
// and for sums and products of bool, which are not supported.
using ReduceTable = ReduceLoops[kReductionCount][kDTypeCount];

NGD_DECLARE_SIMD_LEVELS(const ReduceTable& reduce_table());

inline const ReduceTable& reduce_table() { return NGD_SIMD_SELECT(simd_level(), reduce_table)(); }

}  // namespace ngd::kernels::reduce
