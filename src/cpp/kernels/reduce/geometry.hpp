// SPDX-License-Identifier: Apache-2.0
// How a reduction over any axes is cut into tasks.
//
// Neighbouring axes of one kind, reduced or kept, are merged. If the last is reduced, a segment is
// a piece of a dense row and has one result; if it is kept, a segment is a block of rows and has a
// result a column. The segments of a result are cut into chunks, whose size does not depend on the
// number of threads; a task is one chunk of one kept index and piece of columns.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/shape.hpp"
#include "device/team.hpp"

namespace ngd::kernels::reduce {

inline constexpr std::int64_t kMaxColumns = 512;     // columns of a task
inline constexpr std::int64_t kGrainWork = 1 << 15;  // elements that are worth a thread

struct Axis {
  std::int64_t length, stride;
};

struct Geometry {
  std::vector<Axis> kept, reduced;  // odometers outside the segments
  std::int64_t kept_count = 1, reduced_count = 1;
  bool by_rows = false;      // the last axis is reduced
  Axis along{1, 1};          // the axis that segments cut: elements of a row, or rows
  std::int64_t width = 1;    // results a kept index: 1, or the columns
  std::int64_t columns = 1;  // of a task
  std::int64_t column_pieces = 1;
  std::int64_t piece = 1, pieces = 0;  // of `along`
  std::int64_t chunk = 1, chunks = 1;  // of segments
  std::int64_t total = 1;              // elements behind one result

  // Tasks, one after the other: chunks fastest, then pieces of columns.
  std::int64_t tasks() const { return kept_count * column_pieces * chunks; }
  std::int64_t cells() const { return chunks > 1 ? tasks() * columns : 0; }
  // A result is a kept index and a piece of columns: how many, and where the first one is stored.
  std::int64_t columns_of(std::int64_t result) const {
    return std::min(columns, width - result % column_pieces * columns);
  }
  std::int64_t first_of(std::int64_t result) const {
    return result / column_pieces * width + result % column_pieces * columns;
  }
};

Geometry make_geometry(const Shape& shape, const std::vector<std::int64_t>& axes);

std::int64_t offset_of(const std::vector<Axis>& axes, std::int64_t index);

// Calls visit(offset, count) for every segment of a task: its first element, and its elements of a
// row, or rows.
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

// Tasks that are worth a thread.
inline std::int64_t grain_of(const Geometry& g) {
  const std::int64_t work = std::max<std::int64_t>(1, g.total / g.chunks) * g.columns;
  return std::max<std::int64_t>(1, kGrainWork / work);
}

// Where results have several chunks: calls combine(i) for every result, on all threads.
template <class Combine>
void combine_results(const Geometry& g, const Combine& combine) {
  if (g.chunks == 1) return;
  device::for_range(g.kept_count * g.column_pieces, 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) combine(i);
  });
}

// Calls task(i) for every task on all threads; then combine_results.
template <class Task, class Combine>
void run_tasks(const Geometry& g, const Task& task, const Combine& combine) {
  device::for_range(g.tasks(), grain_of(g), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) task(i);
  });
  combine_results(g, combine);
}

}  // namespace ngd::kernels::reduce
