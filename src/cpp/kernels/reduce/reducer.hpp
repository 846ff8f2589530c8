// SPDX-License-Identifier: Apache-2.0
// One reduction as an op names it: its loops, and how its accumulators become results.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/dtype.hpp"
#include "kernels/reduce/geometry.hpp"
#include "kernels/reduce/loops.hpp"

namespace ngd::kernels::reduce {

inline constexpr std::int64_t kCell = 8;  // bytes of an accumulator

struct Reducer {
  // "sum", "mean", "prod", "max" or "min" of `total` elements; two-byte floats are given as f32.
  Reducer(const std::string& op, DType dtype, std::int64_t total);

  // Why there is none; empty where there is.
  static std::string refusal(const std::string& op, DType dtype);

  // Of a result of several chunks, whose cells lie task after task: those of the whole.
  std::byte* combine(const Geometry& geometry, std::int64_t result, std::byte* cells) const;
  // Combines and stores them.
  void finish(const Geometry& geometry, std::int64_t result, std::byte* cells, void* output) const;
  // Rounds the cells of a result's columns to where they belong in the output.
  void store(const Geometry& geometry, std::int64_t result, const std::byte* cells,
             void* output) const;

  DType dtype;
  ReduceLoops loops;
  double divisor;
};

// Columns in tiles of rows that are gathered or computed: none holds parts of two blocks of rows.
inline std::int64_t rows_of_a_tile(std::int64_t elements, std::int64_t columns) {
  std::int64_t rows = kRowBlock;
  while (rows > 1 && rows * columns > elements) rows /= 2;
  return rows;
}

// Rows of a segment of columns, of so many in all.
struct TileRows {
  std::int64_t begin, count, all;
};

// Adds a tile, dense, to the accumulators: the bits of ReduceLoops::columns of the whole segment.
inline void add_tile(const ReduceLoops& loops, const TileRows& rows, const void* tile,
                     std::int64_t columns, void* partials, void* accumulators) {
  const std::int64_t end = rows.begin + rows.count;
  if (rows.begin % kRowBlock == 0) loops.begin_rows(partials, columns);
  loops.add_rows(tile, rows.count, columns, columns, partials);
  if (end % kRowBlock == 0 || end == rows.all) loops.end_rows(partials, columns, accumulators);
}

}  // namespace ngd::kernels::reduce
