// SPDX-License-Identifier: Apache-2.0
// The kernel of a body (a list of elementwise statements) with reductions of some statements'
// values, for example the sum of x * y over an axis. All reductions of a body are over the same
// axes. The kernel computes the body tile by tile, and combines the values of a tile with
// accumulators while they are in the first-level cache. So it reads the inputs only once. It
// combines the values in the same order as the kernel of a separate reduction
// (fallback/reduce.cpp), so both kernels give the same bits.
#include <algorithm>

#include "device/team.hpp"
#include "kernels/fused/elementwise_walk.hpp"
#include "kernels/reduce/reducer.hpp"
#include "kernels/rows.hpp"

namespace ngd::kernels::fused {

namespace {

using reduce::Geometry;
using reduce::kCell;
using reduce::kMaxColumns;
using reduce::Reducer;

constexpr std::size_t kMaxReductions = 8;

class ElementwiseReduce final : public Kernel {
 public:
  ElementwiseReduce(Plan plan, const KernelQuery& query)
      : plan_(std::move(plan)),
        geometry_(
            reduce::make_geometry(query.attrs.integers("shape"), query.attrs.integers("axes"))),
        num_results_(plan_.outputs.size()) {
    const std::vector<std::string> ops = query.attrs.texts("reductions");
    for (std::size_t k = 0; k < ops.size(); ++k) {
      reducers_.emplace_back(ops[k], query.outputs[num_results_ + k].dtype, geometry_.total);
      first_.push_back(first_with_same_accumulators(k));
      if (first_[k] == k) accumulated_.push_back(k);
    }
  }

  std::size_t scratch_bytes() const override {
    return reducers_.size() * static_cast<std::size_t>(geometry_.cells() * kCell);
  }
  std::vector<InPlace> in_place() const override { return plan_.in_place; }

  void run(const KernelArgs& args) const override {
    if (geometry_.by_rows && plan_.rows_per_tile > 1) return run_short_rows(args);
    device::for_range(geometry_.tasks(), reduce::grain_of(geometry_),
                      [&](std::int64_t begin, std::int64_t end) {
                        TileWalk walk(plan_, args);
                        for (std::int64_t i = begin; i < end; ++i) run_task(i, walk, args);
                      });
    reduce::combine_results(geometry_, [&](std::int64_t result) {
      for (const std::size_t k : accumulated_) {
        std::byte* cells = scratch_cells(args, k, 0);
        store_results(k, result, reducers_[k].combine(geometry_, result, cells), args);
      }
    });
  }

 private:
  // Return the number of the first reduction that has the same accumulators as reduction k; it may
  // be k itself. For example, the sum and the mean of one statement share their accumulators: the
  // mean is divided by the number of elements only when it is stored.
  std::size_t first_with_same_accumulators(std::size_t k) const {
    for (std::size_t l = 0; l < k; ++l)
      if (plan_.kept[l] == plan_.kept[k] && reducers_[l].loops.row == reducers_[k].loops.row)
        return l;
    return k;
  }

  // Compute tiles that consist of several whole rows. Each row of a tile has its own result.
  void run_short_rows(const KernelArgs& args) const {
    const std::int64_t length = plan_.inner;
    device::for_range(plan_.tiles, plan_.grain, [&](std::int64_t begin, std::int64_t end) {
      TileWalk walk(plan_, args);
      for (std::int64_t number = begin; number < end; ++number) {
        walk.tile(number);
        const std::int64_t first = number * plan_.rows_per_tile;
        const std::int64_t last = std::min(plan_.rows, first + plan_.rows_per_tile);
        for (const std::size_t k : accumulated_) {
          const std::byte* x = walk.values(plan_.kept[k]);
          const std::int64_t step = length * item_of(k);
          for (std::int64_t row = first; row < last; ++row, x += step) {
            alignas(kCell) std::byte cell[kCell];
            reducers_[k].loops.clear(cell, 1);
            reducers_[k].loops.row(x, length, cell);
            store_results(k, row, cell, args);
          }
        }
      }
    });
  }

  // Reduce the elements of one task, a chunk (reduce/geometry.hpp defines both). If no other task
  // reduces elements to the same results, also store the results.
  void run_task(std::int64_t task, TileWalk& walk, const KernelArgs& args) const {
    const Geometry& g = geometry_;
    const std::int64_t result = task / g.chunks, columns = g.columns_of(result);
    alignas(64) std::byte own_cells[kMaxReductions][kMaxColumns * kCell];
    std::byte* cells[kMaxReductions];
    for (const std::size_t k : accumulated_) {
      cells[k] = g.chunks == 1 ? own_cells[k] : scratch_cells(args, k, task);
      reducers_[k].loops.clear(cells[k], columns);
    }
    reduce::for_segments(g, task, [&](std::int64_t offset, std::int64_t count) {
      if (g.by_rows)
        add_row(walk, offset, count, cells);
      else
        add_columns(walk, offset, count, columns, cells);
    });
    if (g.chunks == 1)
      for (const std::size_t k : accumulated_) store_results(k, result, cells[k], args);
  }

  // Compute the kernel body (the elementwise statements) for `count` elements of one row, from
  // element number `offset` on. Then update the accumulator cells[k] of reduction k with the values
  // that this reduction reduces.
  void add_row(TileWalk& walk, std::int64_t offset, std::int64_t count,
               std::byte* const* cells) const {
    for (std::int64_t i = 0; i < count; i += plan_.tile_length) {
      const std::int64_t n = std::min(plan_.tile_length, count - i);
      walk.elements(offset + i, n);
      for (const std::size_t k : accumulated_)
        reducers_[k].loops.row(walk.values(plan_.kept[k]), n, cells[k]);
    }
  }

  // Compute the kernel body (the elementwise statements) for `count` rows of `columns` elements,
  // from element number `offset` on. Then combine the values of each column with the accumulator of
  // this column. cells[k] has the accumulators of reduction k.
  void add_columns(TileWalk& walk, std::int64_t offset, std::int64_t count, std::int64_t columns,
                   std::byte* const* cells) const {
    alignas(64) std::byte partials[kMaxReductions][kMaxColumns * kCell];
    for (std::int64_t r = 0; r < count; r += plan_.rows_per_tile) {
      const std::int64_t n = std::min(plan_.rows_per_tile, count - r);
      walk.elements(offset + r * geometry_.along.stride, n * columns);
      for (const std::size_t k : accumulated_)
        reduce::add_tile(reducers_[k].loops, {r, n, count}, walk.values(plan_.kept[k]), columns,
                         partials[k], cells[k]);
    }
  }

  // Return the number of bytes per element in the tiles that reduction k reads.
  std::int64_t item_of(std::size_t k) const {
    const DType dtype = reducers_[k].dtype;
    return static_cast<std::int64_t>(size_of(is_half(dtype) ? DType::F32 : dtype));
  }

  // Return the accumulators of reduction k for a task, in scratch memory. Those of the next task
  // follow.
  std::byte* scratch_cells(const KernelArgs& args, std::size_t k, std::int64_t task) const {
    const std::int64_t first_cell = static_cast<std::int64_t>(k) * geometry_.cells();
    return static_cast<std::byte*>(args.scratch) + (first_cell + task * geometry_.columns) * kCell;
  }

  // Store the results of reduction k, and of all later reductions that share its accumulators
  // (partial results).
  void store_results(std::size_t k, std::int64_t result, const std::byte* cells,
                     const KernelArgs& args) const {
    for (std::size_t l = k; l < reducers_.size(); ++l)
      if (first_[l] == k)
        reducers_[l].store(geometry_, result, cells, args.outputs[num_results_ + l]);
  }

  Plan plan_;
  Geometry geometry_;
  std::size_t num_results_;
  std::vector<Reducer> reducers_;
  // first_[k] is the first reduction that has the same accumulators (partial results) as reduction
  // k. accumulated_ has each k with first_[k] == k: only these reductions have accumulators of
  // their own.
  std::vector<std::size_t> first_, accumulated_;
};

// Return true if the plan's tiles fit the blocks of a reduction of floats, kBlockBytes of a row
// (reduce/loops.hpp). The result is false only if the last axis is reduced, a row has several
// tiles, and a full tile is not exactly one block. `g` is the geometry of the reduction, and `item`
// is the number of bytes per element.
bool is_block(const Plan& plan, const Geometry& g, std::size_t item) {
  const std::int64_t block = reduce::kBlockBytes / static_cast<std::int64_t>(item);
  return !g.by_rows || plan.tiles_per_row == 1 || plan.tile_length == block;
}

}  // namespace

Offer offer_elementwise_reduce(const KernelQuery& query, const Machine&) try {
  Plan plan(query);
  const std::vector<std::string> ops = query.attrs.texts("reductions");
  const std::vector<std::int64_t>& axes = query.attrs.integers("axes");
  if (ops.empty() || ops.size() != plan.kept.size() || ops.size() > kMaxReductions)
    return Offer::refuse("the reduced statements need one reduction each, and at most 8");
  const Geometry g = reduce::make_geometry(query.attrs.integers("shape"), axes);
  for (std::size_t k = 0; k < ops.size(); ++k) {
    const TensorType& output = query.outputs[plan.outputs.size() + k];
    const DType dtype = output.dtype;
    if (const std::string reason = Reducer::refusal(ops[k], dtype); !reason.empty())
      return Offer::refuse(reason);
    if (output.count() != g.kept_count * g.width)
      return Offer::refuse("a reduced output does not have the kept axes");
    if ((ops[k] == "max" || ops[k] == "min") && g.total == 0 && output.count() > 0)
      return Offer::refuse(ops[k] + " of no elements");
    if (is_floating(dtype) && !is_block(plan, g, size_of(is_half(dtype) ? DType::F32 : dtype)))
      return Offer::refuse("a wider dtype makes the tiles of a row smaller than a block");
  }
  return {std::make_unique<ElementwiseReduce>(std::move(plan), query)};
} catch (const Refusal& refusal) {
  return Offer::refuse(refusal.what());
}

}  // namespace ngd::kernels::fused
