// SPDX-License-Identifier: Apache-2.0
// The inner loops of the reduce kernels, one set per reduction and dtype.
//
// To combine two elements is to add or multiply them, or to take their maximum or minimum. Elements
// are combined in an order that is the same on every SIMD level. The accumulators of floats are
// float64, and those of other elements have the dtype of the elements.
//
// If the last axis is reduced, a row of floats is divided into blocks of kBlockBytes. A lane tree
// (tiles/lane_tree.hpp) reduces each block, and the results of the blocks are combined with the
// row's accumulator in order. If the last axis is kept, each column has an accumulator, and the
// rows are divided into blocks of kRowBlock rows. In each block, each column is first reduced in
// the dtype of the elements. This result is then combined with the column's accumulator, block by
// block.
#pragma once

#include <cstdint>

#include "base/dtype.hpp"
#include "base/simd.hpp"

namespace ngd::kernels::reduce {

enum class Reduction : std::uint8_t { Sum, Prod, Max, Min };
inline constexpr int kReductionCount = 4;
inline constexpr std::int64_t kRowBlock = 32;
// A row of floats is reduced in blocks of this many bytes.
inline constexpr std::int64_t kBlockBytes = 4096;

struct ReduceLoops {
  // Set accumulators to the value of a reduction of no elements, such as 0 for a sum.
  void (*clear)(void* accumulators, std::int64_t count);
  // Combine an accumulator with `count` dense elements.
  void (*row)(const void* elements, std::int64_t count, void* accumulator);
  // Combine accumulators[j] with column j of `rows` rows. `stride` is the number of elements from
  // one row to the next.
  void (*columns)(const void* elements, std::int64_t rows, std::int64_t stride, std::int64_t width,
                  void* accumulators);
  // These three functions together do the work of `columns`, for a block of rows that the caller
  // passes in several parts. Call begin_rows once, and then add_rows for each part of the rows. At
  // the end, end_rows combines the partial results with the accumulators. `partials` has one
  // partial result per column, in the dtype of the elements.
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

// Return the loops for simd_level(), the highest SIMD level that this process can use.
inline const ReduceTable& reduce_table() { return NGD_SIMD_SELECT(simd_level(), reduce_table)(); }

}  // namespace ngd::kernels::reduce
