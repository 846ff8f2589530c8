// SPDX-License-Identifier: Apache-2.0
// The division of a reduction over any axes into tasks. The order of a sum does not depend on the
// number of threads.
//
// An axis is reduced or kept. Neighbouring axes of one kind are merged. The words are:
//   segment  If the last axis is reduced: a piece of a dense row, which is reduced to one element.
//            If the last axis is kept: a block of rows, which is reduced to one element per column.
//   piece of columns  A part of the columns, if the last axis is kept. A row with at most
//            kMaxColumns columns has one piece, and a longer row has several.
//   result   If the last axis is reduced: one element of the output.
//            If the last axis is kept: the elements of the output for one piece of columns, at one
//            index of the other kept axes.
//   chunk    A part of the segments that are reduced to one result. The size of a chunk does not
//            depend on the number of threads.
//   task     The reduction of one chunk.
//   cell     The memory of one accumulator. If a result has several chunks, each task keeps its
//            accumulators in cells in scratch memory. At the end, the cells of the chunks of each
//            result are combined.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/shape.hpp"
#include "device/team.hpp"

namespace ngd::kernels::reduce {

// If the last axis is kept, one task reduces at most this many columns.
inline constexpr std::int64_t kMaxColumns = 512;
inline constexpr std::int64_t kGrainWork = 1 << 15;  // the minimum of elements per thread

struct Axis {
  std::int64_t length, stride;
};

// The division of one reduction into tasks, which threads run in any order. A task reduces one
// chunk, a list of segments. A segment is a piece of a dense row, or a block of rows.
struct Geometry {
  // The kept and the reduced axes, except `along`, and except the last axis if it is kept. The
  // members kept_count and reduced_count are the products of the lengths of these axes.
  std::vector<Axis> kept, reduced;
  std::int64_t kept_count = 1, reduced_count = 1;
  bool by_rows = false;    // the last axis is reduced
  Axis along{1, 1};        // the innermost reduced axis, which is divided into segments
  std::int64_t width = 1;  // the length of the last axis (the columns) if it is kept, else 1
  // The columns are divided into `column_pieces` pieces of at most `columns` columns. A task
  // reduces one piece. If the last axis is reduced, both members are 1.
  std::int64_t columns = 1;
  std::int64_t column_pieces = 1;
  // The innermost reduced axis (`along`) is divided into `pieces` segments. Each segment has at
  // most `piece` positions of this axis.
  std::int64_t piece = 1, pieces = 0;
  // `chunks` tasks compute a result. Each task reduces one chunk of at most `chunk` segments.
  std::int64_t chunk = 1, chunks = 1;
  std::int64_t total = 1;  // elements that are reduced to one result

  // Return the number of tasks. Task number (k * column_pieces + j) * chunks + c reduces chunk c of
  // the elements at index k of the axes `kept`, in the columns from j * columns on.
  std::int64_t tasks() const { return kept_count * column_pieces * chunks; }
  // Return the number of cells (accumulators) in scratch memory: 0 if one task computes each
  // result.
  std::int64_t cells() const { return chunks > 1 ? tasks() * columns : 0; }
  // A result is a part of the output: one piece of the columns, at one index of the axes `kept`.
  // Result number k * column_pieces + j has piece j at index k. columns_of() returns the number of
  // columns of a result. first_of() returns the flat index of its first element in the output.
  std::int64_t columns_of(std::int64_t result) const {
    return std::min(columns, width - result % column_pieces * columns);
  }
  std::int64_t first_of(std::int64_t result) const {
    return result / column_pieces * width + result % column_pieces * columns;
  }
};

// Divide the reduction of a tensor of this shape into tasks. `axes` are the reduced axes, in any
// order.
Geometry make_geometry(const Shape& shape, const std::vector<std::int64_t>& axes);

// Return the offset in elements of position number `index` in row-major order over the axes.
std::int64_t offset_of(const std::vector<Axis>& axes, std::int64_t index);

// Call visit(offset, count) for each segment that a task reduces. If the last axis is reduced, a
// segment is a piece of a row with `count` elements. Otherwise, a segment is a block of `count`
// rows. `offset` is the index of the segment's first element in the input.
template <class Visit>
void for_segments(const Geometry& g, std::int64_t task, const Visit& visit) {
  const std::int64_t chunk = task % g.chunks, result = task / g.chunks;
  const std::int64_t base =
      offset_of(g.kept, result / g.column_pieces) + result % g.column_pieces * g.columns;
  const std::int64_t segments = g.reduced_count * g.pieces;
  for (std::int64_t s = chunk * g.chunk; s < std::min(segments, (chunk + 1) * g.chunk); ++s) {
    const std::int64_t begin = s % g.pieces * g.piece;
    const std::int64_t offset = base + offset_of(g.reduced, s / g.pieces) + begin * g.along.stride;
    visit(offset, std::min(g.piece, g.along.length - begin));
  }
}

// Return the grain of the reduction, the number of tasks that are enough work for one thread. These
// tasks reduce about kGrainWork elements.
inline std::int64_t grain_of(const Geometry& g) {
  const std::int64_t work = std::max<std::int64_t>(1, g.total / g.chunks) * g.columns;
  return std::max<std::int64_t>(1, kGrainWork / work);
}

// If several tasks compute each result (g.chunks > 1), call combine(i) for each result i, which
// combines the partial results of its tasks. The threads share the calls. If one task computes a
// whole result, do nothing.
template <class Combine>
void combine_results(const Geometry& g, const Combine& combine) {
  if (g.chunks == 1) return;
  device::for_range(g.kept_count * g.column_pieces, 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) combine(i);
  });
}

// Call task(i) for each task i. The threads share the tasks. Then call combine_results().
template <class Task, class Combine>
void run_tasks(const Geometry& g, const Task& task, const Combine& combine) {
  device::for_range(g.tasks(), grain_of(g), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) task(i);
  });
  combine_results(g, combine);
}

}  // namespace ngd::kernels::reduce
