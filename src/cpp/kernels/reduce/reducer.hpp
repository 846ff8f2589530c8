// SPDX-License-Identifier: Apache-2.0
// The reduction for an op such as "mean": its loops, and the conversion of accumulators to results.
// geometry.hpp defines segments, results, chunks and cells.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/dtype.hpp"
#include "kernels/reduce/geometry.hpp"
#include "kernels/reduce/loops.hpp"

namespace ngd::kernels::reduce {

inline constexpr std::int64_t kCell = 8;  // bytes of a cell, the memory of an accumulator

struct Reducer {
  // `op`: "sum", "mean", "prod", "max" or "min". refusal(op, dtype) must be empty. `total`: the
  // number of elements that are reduced to one result, the divisor of a mean. The caller widens
  // 16-bit floats to f32 before it calls `loops`. The accumulators of floats are f64.
  Reducer(const std::string& op, DType dtype, std::int64_t total);

  // Return the reason why there is no reduction `op` for `dtype`, or an empty text if there is one.
  static std::string refusal(const std::string& op, DType dtype);

  // Combine the accumulators of the tasks that compute a result, in place, by a balanced tree.
  // `cells` is the memory of the accumulators of all tasks, in the order of the task numbers.
  // Return the memory of the result's first task, which then has the accumulators of the result.
  std::byte* combine(const Geometry& geometry, std::int64_t result, std::byte* cells) const;
  // Combine the accumulators of a result by combine(), and store the result in `output` by store().
  void finish(const Geometry& geometry, std::int64_t result, std::byte* cells, void* output) const;
  // Store result number `result` in the output. `cells` has its accumulators, one per column.
  // Floats are divided by `divisor` and rounded.
  void store(const Geometry& geometry, std::int64_t result, const std::byte* cells,
             void* output) const;

  DType dtype;
  ReduceLoops loops;
  double divisor;
};

// Return the number of rows per tile, for tiles of `columns` columns and at most `elements`
// elements, but at least one row. The loops reduce rows in blocks of kRowBlock rows, and a tile may
// not have rows of two blocks. So the returned number divides kRowBlock.
inline std::int64_t rows_of_a_tile(std::int64_t elements, std::int64_t columns) {
  std::int64_t rows = kRowBlock;
  while (rows > 1 && rows * columns > elements) rows /= 2;
  return rows;
}

// The rows of one tile: the `count` rows of a segment from number `begin` on. A segment is a block
// of rows that are reduced together, and `all` is the number of its rows.
struct TileRows {
  std::int64_t begin, count, all;
};

// Combine the rows of a dense tile with the accumulators, one per column. A tile is some rows of a
// segment, a block of rows that one task reduces. After all tiles of a segment, in order, the
// accumulators have the same bits as after one call of ReduceLoops::columns for the segment.
inline void add_tile(const ReduceLoops& loops, const TileRows& rows, const void* tile,
                     std::int64_t columns, void* partials, void* accumulators) {
  const std::int64_t end = rows.begin + rows.count;
  if (rows.begin % kRowBlock == 0) loops.begin_rows(partials, columns);
  loops.add_rows(tile, rows.count, columns, columns, partials);
  if (end % kRowBlock == 0 || end == rows.all) loops.end_rows(partials, columns, accumulators);
}

}  // namespace ngd::kernels::reduce
