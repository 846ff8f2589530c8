// SPDX-License-Identifier: Apache-2.0
// sum, mean, max, min and prod over any axes. reduce/geometry.hpp describes how the elements are
// divided into chunks and tasks. If a result has several chunks, the results of the chunks are
// combined by a balanced tree.
#include <algorithm>

#include "kernels/reduce/loops.hpp"
#include "kernels/reduce/reducer.hpp"
#include "kernels/rows.hpp"
#include "kernels/tiles/tiles.hpp"

namespace ngd::kernels::fallback {

using reduce::add_tile;
using reduce::for_segments;
using reduce::Geometry;
using reduce::kCell;
using reduce::kMaxColumns;
using reduce::make_geometry;
using reduce::ReduceLoops;
using reduce::Reducer;
using reduce::rows_of_a_tile;
using reduce::run_tasks;

namespace {

class Reduce final : public Kernel {
 public:
  explicit Reduce(const KernelQuery& query)
      : dtype_(query.inputs[0].dtype),
        geometry_(make_geometry(query.inputs[0].shape, query.attrs.integers("axes"))),
        reducer_(query.attrs.text("op"), dtype_, geometry_.total),
        loops_(reducer_.loops),
        widen_(tiles::widening(dtype_)) {}

  std::size_t scratch_bytes() const override {
    return static_cast<std::size_t>(geometry_.cells() * kCell);
  }

  void run(const KernelArgs& args) const override {
    run_tasks(
        geometry_, [&](std::int64_t task) { run_task(task, args); },
        [&](std::int64_t result) {
          reducer_.finish(geometry_, result, scratch_cells(args, 0), args.outputs[0]);
        });
  }

 private:
  // Return the cells of a task in scratch memory. A cell is one accumulator.
  std::byte* scratch_cells(const KernelArgs& args, std::int64_t task) const {
    return static_cast<std::byte*>(args.scratch) + task * geometry_.columns * kCell;
  }

  // Reduce one chunk, a part of the elements that are reduced to one result. If the chunk is all of
  // these elements, store the result. Otherwise, leave the accumulators in the scratch memory.
  void run_task(std::int64_t task, const KernelArgs& args) const {
    const Geometry& g = geometry_;
    const std::int64_t result = task / g.chunks;
    alignas(64) std::byte own_cells[kMaxColumns * kCell];
    std::byte* cells = g.chunks == 1 ? own_cells : scratch_cells(args, task);
    const std::int64_t columns = g.columns_of(result);
    loops_.clear(cells, columns);
    for_segments(g, task, [&](std::int64_t offset, std::int64_t count) {
      add_segment(args.inputs[0], offset, count, columns, cells);
    });
    if (g.chunks == 1) reducer_.store(g, result, cells, args.outputs[0]);
  }

  // Combine one segment with `cells`, the accumulators of the task. A segment is `count` elements
  // of one row (if by_rows is true), or `count` rows. It begins at element `offset`.
  void add_segment(const void* input, std::int64_t offset, std::int64_t count, std::int64_t columns,
                   void* cells) const {
    const auto* x =
        static_cast<const std::byte*>(input) + offset * static_cast<std::int64_t>(size_of(dtype_));
    if (widen_ != nullptr)
      add_16_bit_segment(x, count, columns, cells);
    else if (geometry_.by_rows)
      loops_.row(x, count, cells);
    else
      loops_.columns(x, count, geometry_.along.stride, columns, cells);
  }

  // Widen a segment of 16-bit floats to f32, as many elements as fit the buffer at a time, and add
  // them to `cells`, the accumulators of the task.
  void add_16_bit_segment(const std::byte* x, std::int64_t count, std::int64_t columns,
                          void* cells) const {
    constexpr std::int64_t kBuffer = 4096;
    alignas(64) float widened[kBuffer];
    if (geometry_.by_rows) {
      for (std::int64_t i = 0; i < count; i += kBuffer) {
        const std::int64_t n = std::min(kBuffer, count - i);
        widen_(x + 2 * i, nullptr, nullptr, widened, n);
        loops_.row(widened, n, cells);
      }
      return;
    }
    alignas(64) float partials[kMaxColumns];
    const std::int64_t rows = rows_of_a_tile(kBuffer, columns);
    for (std::int64_t i = 0; i < count; i += rows) {
      const std::int64_t n = std::min(rows, count - i);
      for (std::int64_t r = 0; r < n; ++r)
        widen_(x + 2 * (i + r) * geometry_.along.stride, nullptr, nullptr, widened + r * columns,
               columns);
      add_tile(loops_, {i, n, count}, widened, columns, partials, cells);
    }
  }

  DType dtype_;
  Geometry geometry_;
  Reducer reducer_;
  const ReduceLoops& loops_;
  tiles::TileFunction widen_;
};

}  // namespace

Offer offer_reduce(const KernelQuery& query, const Machine&) {
  const std::string& op = query.attrs.text("op");
  const TensorType& input = query.inputs[0];
  if (query.outputs[0].dtype != input.dtype)
    return Offer::refuse("the output's dtype is not the input's");
  if (const std::string reason = Reducer::refusal(op, input.dtype); !reason.empty())
    return Offer::refuse(reason);
  for (const std::int64_t axis : query.attrs.integers("axes"))
    if (axis < 0 || axis >= static_cast<std::int64_t>(input.shape.size()))
      return Offer::refuse("axis " + std::to_string(axis) + " is not in the input");
  const Geometry g = make_geometry(input.shape, query.attrs.integers("axes"));
  if (g.kept_count * g.width != query.outputs[0].count())
    return Offer::refuse("the output does not have the input's kept axes");
  const bool is_ordered = op == "max" || op == "min";
  if (is_ordered && g.total == 0 && query.outputs[0].count() > 0)
    return Offer::refuse(op + " of no elements");
  return {std::make_unique<Reduce>(query)};
}

}  // namespace ngd::kernels::fallback
