// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <numeric>

#include "base/bits.hpp"
#include "base/error.hpp"
#include "kernels/fused/plan_parts.hpp"
#include "kernels/reduce/geometry.hpp"
#include "kernels/reduce/reducer.hpp"

namespace ngd::kernels::fused {

namespace {

// Return one flag per axis of the statements' values: true if the axis is reduced, because the
// attribute `axes` lists it.
std::vector<bool> reduced_axes(const KernelQuery& query, std::size_t num_axes) {
  std::vector<bool> is_reduced(num_axes);
  if (!query.attrs.has("axes")) return is_reduced;
  for (const std::int64_t axis : query.attrs.integers("axes")) {
    if (axis < 0 || axis >= static_cast<std::int64_t>(num_axes))
      throw Refusal(concat("axis ", axis, " is not in the shape"));
    is_reduced[static_cast<std::size_t>(axis)] = true;
  }
  return is_reduced;
}

// Append an axis of `length` to the plan, or merge the axis with the plan's last one. strides: for
// each input, the stride of the axis in elements.
void add_axis(Plan& plan, std::int64_t length, const std::vector<std::int64_t>& strides,
              bool may_merge) {
  bool is_merged = may_merge && !plan.shape.empty();
  for (std::size_t i = 0; i < plan.inputs.size() && is_merged; ++i)
    is_merged = plan.inputs[i].strides.back() == strides[i] * length;
  if (is_merged)
    plan.shape.back() *= length;
  else
    plan.shape.push_back(length);
  for (std::size_t i = 0; i < plan.inputs.size(); ++i) {
    if (strides[i] < 0) throw Refusal("a stride is negative");
    if (is_merged)
      plan.inputs[i].strides.back() = strides[i];
    else
      plan.inputs[i].strides.push_back(strides[i]);
  }
}

// Drop axes of length 1. Merge neighbouring axes if every input can step over them with one stride.
// A reduced axis is never merged with a kept one.
void merge_axes(Plan& plan, const KernelQuery& query, const Shape& body_shape) {
  const std::vector<bool> is_reduced = reduced_axes(query, body_shape.size());
  const std::vector<std::int64_t>& flat = query.attrs.integers("input_strides");
  if (flat.size() != query.inputs.size() * body_shape.size())
    throw Refusal(concat("input_strides has ", flat.size(), " numbers, not inputs x axes = ",
                         query.inputs.size() * body_shape.size()));
  plan.inputs.resize(query.inputs.size());
  std::size_t previous = 0;
  std::vector<std::int64_t> strides(plan.inputs.size());
  for (std::size_t axis = 0; axis < body_shape.size(); ++axis) {
    if (body_shape[axis] == 1) continue;
    for (std::size_t i = 0; i < strides.size(); ++i)
      strides[i] = flat[i * body_shape.size() + axis];
    add_axis(plan, body_shape[axis], strides, is_reduced[axis] == is_reduced[previous]);
    previous = axis;
  }
  if (plan.shape.empty()) {
    plan.shape.push_back(1);
    for (InputPlan& input : plan.inputs) input.strides.push_back(1);
  }
  plan.inner = plan.shape.back();
  plan.rows = std::accumulate(plan.shape.begin(), plan.shape.end() - 1, std::int64_t{1},
                              std::multiplies<>());
}

// Choose tiles of at most `max_length` elements: several whole rows if a row fits in a tile, and
// pieces of one row otherwise. A plan with matrix products as inputs always gets pieces of rows.
void choose_tiles(Plan& plan, std::int64_t max_length) {
  if (plan.inner == 0 || plan.rows == 0) return;
  if (plan.rows > 1 && plan.inner <= max_length && plan.given.empty()) {
    plan.rows_per_tile = std::min(plan.rows, max_length / plan.inner);
    plan.tile_length = plan.rows_per_tile * plan.inner;
    plan.tiles = divide_up(plan.rows, plan.rows_per_tile);
  } else {
    plan.tile_length = std::min(plan.inner, max_length);
    plan.tiles_per_row = divide_up(plan.inner, max_length);
    plan.tiles = plan.rows * plan.tiles_per_row;
  }
}

// Choose tiles for a kernel that also reduces values. `g` is the geometry of the reduction, which
// combines elements block by block (reduce/loops.hpp). If the last axis is kept (not reduced), a
// block is kRowBlock rows, and no tile has rows of two blocks. If the last axis is reduced, a block
// is kBlockBytes of one row. A row that is longer than a tile then has one tile per block.
void choose_reduced_tiles(Plan& plan, std::int64_t max_length, const reduce::Geometry& g) {
  if (plan.inner != (g.by_rows ? g.along.length : g.width))
    throw Refusal("an input has no constant stride along a row");
  if (plan.inner == 0 || plan.rows == 0) return;
  if (!g.by_rows) {
    plan.rows_per_tile = g.column_pieces == 1 ? reduce::rows_of_a_tile(max_length, plan.inner) : 1;
    plan.tile_length = plan.rows_per_tile * g.columns;
    plan.tiles_per_row = g.column_pieces;
  } else if (g.reduced.empty() && plan.inner <= max_length) {
    plan.rows_per_tile = std::min(plan.rows, max_length / plan.inner);
    plan.tile_length = plan.rows_per_tile * plan.inner;
  } else {
    plan.tile_length = std::min(plan.inner, max_length);
    plan.tiles_per_row = divide_up(plan.inner, max_length);
  }
  plan.tiles = divide_up(plan.rows, plan.rows_per_tile) * plan.tiles_per_row;
}

// Return true if input number `input` of the kernel body is a matrix product (Reading::Given).
bool is_given(const Plan& plan, std::size_t input) {
  return std::find(plan.given.begin(), plan.given.end(), static_cast<std::int64_t>(input)) !=
         plan.given.end();
}

// Return the kind of memory from which loops read an input: its own memory or a buffer. `dense` is
// the strides of a dense array of plan.shape. Throws Refusal if the input is a matrix product
// (is_given) and its strides differ from `dense`.
Reading reading_of(const Plan& plan, const InputPlan& input, const Shape& dense, bool is_given) {
  const bool within_rows = plan.rows_per_tile == 1,
             one_tile_per_row = plan.tiles_per_row == 1 && plan.given.empty(),
             same_in_all_rows = std::all_of(input.strides.begin(), input.strides.end() - 1,
                                            [](std::int64_t stride) { return stride == 0; });
  const std::int64_t step = input.strides.back();
  if (is_given) {
    if (input.strides != dense) throw Refusal("a product is not read in its own order");
    return Reading::Given;
  }
  if (input.strides == dense) return Reading::InPlace;
  if (same_in_all_rows && (step == 0 || one_tile_per_row)) return Reading::Once;
  if (within_rows && step == 1) return Reading::InRow;
  if (within_rows && step == 0 && plan.given.empty()) return Reading::PerRow;
  return Reading::EveryTile;
}

// Set `item` (bytes per element) and `reading` (the memory that loops read) of each input. Throws
// Refusal if the strides of an input reach past its end.
void choose_readings(Plan& plan, const KernelQuery& query) {
  const Shape dense = row_major_strides(plan.shape);
  for (std::size_t i = 0; i < plan.inputs.size(); ++i) {
    InputPlan& input = plan.inputs[i];
    input.item = size_of(query.inputs[i].dtype);
    std::int64_t last = 0;  // the largest index of an element that is read
    for (std::size_t axis = 0; axis < plan.shape.size(); ++axis)
      last += (plan.shape[axis] - 1) * input.strides[axis];
    if (plan.tiles > 0 && last >= query.inputs[i].count())
      throw Refusal(concat("the strides of input ", i, " reach past its end"));
    input.reading = reading_of(plan, input, dense, is_given(plan, i));
  }
}

}  // namespace

void plan_geometry(Plan& plan, const Body& body, const KernelQuery& query,
                   std::int64_t item_bytes) {
  if (query.attrs.has("products")) plan.given = query.attrs.integers("products");
  merge_axes(plan, query, body.shape);
  if (body.reduced.empty())
    choose_tiles(plan, kTileBytes / item_bytes);
  else
    choose_reduced_tiles(plan, kTileBytes / item_bytes,
                         reduce::make_geometry(body.shape, query.attrs.integers("axes")));
  choose_readings(plan, query);
}

}  // namespace ngd::kernels::fused
