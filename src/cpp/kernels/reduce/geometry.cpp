// SPDX-License-Identifier: Apache-2.0
// Geometry of reductions. geometry.hpp defines the words.
#include "kernels/reduce/geometry.hpp"

#include "kernels/reduce/loops.hpp"

namespace ngd::kernels::reduce {

namespace {
constexpr std::int64_t kChunk = 1 << 16;  // the approximate number of elements that a task reduces
}

Geometry make_geometry(const Shape& shape, const std::vector<std::int64_t>& axes) {
  struct Group {
    Axis axis;
    bool is_reduced;
  };
  std::vector<Group> groups;
  const Shape strides = row_major_strides(shape);
  for (std::size_t a = 0; a < shape.size(); ++a) {
    if (shape[a] == 1) continue;
    const bool is_reduced = std::find(axes.begin(), axes.end(), a) != axes.end();
    if (!groups.empty() && groups.back().is_reduced == is_reduced) {
      groups.back().axis.length *= shape[a];
      groups.back().axis.stride = strides[a];
    } else {
      groups.push_back({{shape[a], strides[a]}, is_reduced});
    }
  }
  Geometry g;
  for (const Group& group : groups)
    if (group.is_reduced) g.total *= group.axis.length;
  g.by_rows = groups.empty() || groups.back().is_reduced;
  if (!groups.empty() && !g.by_rows) {
    g.width = groups.back().axis.length;
    groups.pop_back();
  }
  if (!groups.empty() && groups.back().is_reduced) {
    g.along = groups.back().axis;
    groups.pop_back();
  }
  for (const Group& group : groups) {
    (group.is_reduced ? g.reduced : g.kept).push_back(group.axis);
    (group.is_reduced ? g.reduced_count : g.kept_count) *= group.axis.length;
  }
  g.columns = std::clamp<std::int64_t>(g.width, 1, kMaxColumns);
  g.column_pieces = divide_up(g.width, g.columns);
  g.piece = std::max(kRowBlock, kChunk / g.columns);
  g.pieces = divide_up(g.along.length, g.piece);
  const std::int64_t segment = std::max<std::int64_t>(1, std::min(g.piece, g.along.length));
  g.chunk = std::max<std::int64_t>(1, kChunk / (segment * g.columns));
  g.chunks = std::max<std::int64_t>(1, divide_up(g.reduced_count * g.pieces, g.chunk));
  return g;
}

std::int64_t offset_of(const std::vector<Axis>& axes, std::int64_t index) {
  std::int64_t offset = 0;
  for (std::size_t a = axes.size(); a-- > 0;) {
    offset += index % axes[a].length * axes[a].stride;
    index /= axes[a].length;
  }
  return offset;
}

}  // namespace ngd::kernels::reduce
