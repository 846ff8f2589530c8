// SPDX-License-Identifier: Apache-2.0
// sum, mean, max, min and prod over any axes: the chunks of a result (reduce_geometry.hpp), where
// there are several, meet in scratch and are combined as a balanced tree.
#include "kernels/portable/reduce.hpp"

#include <algorithm>
#include <cstring>

#include "base/error.hpp"
#include "base/simd.hpp"
#include "kernels/fused/tiles.hpp"
#include "kernels/portable/reduce_geometry.hpp"
#include "kernels/rows.hpp"

namespace ngd::kernels::portable {

namespace {

constexpr std::int64_t kCell = 8;  // bytes of scratch an accumulator

bool parse_reduction(const std::string& name, Reduction* reduction) {
  if (name == "sum" || name == "mean")
    *reduction = Reduction::Sum;
  else if (name == "prod")
    *reduction = Reduction::Prod;
  else if (name == "max")
    *reduction = Reduction::Max;
  else if (name == "min")
    *reduction = Reduction::Min;
  else
    return false;
  return true;
}

const ReduceLoops& loops_of(Reduction reduction, DType dtype) {
  const DType computed = is_half(dtype) ? DType::F32 : dtype;
  return NGD_SIMD_SELECT(reduce_table)()[static_cast<int>(reduction)][static_cast<int>(computed)];
}

class Reduce final : public Kernel {
 public:
  explicit Reduce(const KernelQuery& query)
      : dtype_(query.inputs[0].dtype),
        geometry_(make_geometry(query.inputs[0].shape, query.attrs.integers("axes"))) {
    Reduction reduction{};
    parse_reduction(query.attrs.text("op"), &reduction);
    loops_ = loops_of(reduction, dtype_);
    mean_ = query.attrs.text("op") == "mean";
    if (is_half(dtype_)) {
      const fused::TileTable& table = fused::tile_table();
      widen_ = dtype_ == DType::F16 ? table.widen_f16 : table.widen_bf16;
    }
  }

  void run(const KernelArgs& args) const override {
    run_tasks(
        geometry_, [&](std::int64_t task) { run_task(task, args); },
        [&](std::int64_t result) { combine_chunks(result, args); });
  }

 private:
  std::byte* scratch_cells(const KernelArgs& args, std::int64_t task) const {
    return static_cast<std::byte*>(args.scratch) + task * geometry_.columns * kCell;
  }

  void run_task(std::int64_t task, const KernelArgs& args) const {
    const Geometry& g = geometry_;
    const std::int64_t result = task / g.chunks;
    alignas(64) std::byte own[kMaxColumns * kCell];
    std::byte* cells = g.chunks == 1 ? own : scratch_cells(args, task);
    const std::int64_t columns = g.columns_of(result);
    loops_.clear(cells, columns);
    for_segments(g, task, [&](std::int64_t offset, std::int64_t count) {
      add_segment(args.inputs[0], offset, count, columns, cells);
    });
    if (g.chunks == 1) store(result, cells, columns, args.outputs[0]);
  }

  void add_segment(const void* input, std::int64_t offset, std::int64_t count, std::int64_t columns,
                   void* cells) const {
    const auto* x =
        static_cast<const std::byte*>(input) + offset * static_cast<std::int64_t>(size_of(dtype_));
    if (widen_ != nullptr)
      add_half_segment(x, count, columns, cells);
    else if (geometry_.by_rows)
      loops_.row(x, count, cells);
    else
      loops_.columns(x, count, geometry_.along.stride, columns, cells);
  }

  // Two-byte floats are widened a buffer at a time.
  void add_half_segment(const std::byte* x, std::int64_t count, std::int64_t columns,
                        void* cells) const {
    constexpr std::int64_t kBuffer = 4096;
    alignas(64) float wide[kBuffer];
    if (geometry_.by_rows) {
      for (std::int64_t i = 0; i < count; i += kBuffer) {
        const std::int64_t n = std::min(kBuffer, count - i);
        widen_(x + 2 * i, nullptr, nullptr, wide, n);
        loops_.row(wide, n, cells);
      }
      return;
    }
    const std::int64_t rows = kBuffer / columns;
    for (std::int64_t i = 0; i < count; i += rows) {
      const std::int64_t n = std::min(rows, count - i);
      for (std::int64_t r = 0; r < n; ++r)
        widen_(x + 2 * (i + r) * geometry_.along.stride, nullptr, nullptr, wide + r * columns,
               columns);
      loops_.columns(wide, n, columns, columns, cells);
    }
  }

  void combine_chunks(std::int64_t result, const KernelArgs& args) const {
    const Geometry& g = geometry_;
    const std::int64_t columns = g.columns_of(result);
    for (std::int64_t apart = 1; apart < g.chunks; apart *= 2)
      for (std::int64_t c = 0; c + apart < g.chunks; c += 2 * apart)
        loops_.merge(scratch_cells(args, result * g.chunks + c),
                     scratch_cells(args, result * g.chunks + c + apart), columns);
    store(result, scratch_cells(args, result * g.chunks), columns, args.outputs[0]);
  }

  void store(std::int64_t result, const std::byte* cells, std::int64_t columns,
             void* output) const {
    const Geometry& g = geometry_;
    const std::int64_t at = g.first_of(result);
    if (!is_floating(dtype_)) {
      const auto item = static_cast<std::int64_t>(size_of(dtype_));
      std::memcpy(static_cast<std::byte*>(output) + at * item, cells,
                  static_cast<std::size_t>(columns * item));
      return;
    }
    const auto* values = reinterpret_cast<const double*>(cells);
    const double divisor = mean_ ? static_cast<double>(g.total) : 1.0;
    visit_dtype(dtype_, [&]<class T>() {
      if constexpr (std::is_same_v<T, double>)
        for (std::int64_t j = 0; j < columns; ++j)
          static_cast<T*>(output)[at + j] = values[j] / divisor;
      else if constexpr (!std::is_integral_v<T>)
        for (std::int64_t j = 0; j < columns; ++j)
          static_cast<T*>(output)[at + j] = T(static_cast<float>(values[j] / divisor));
    });
  }

  DType dtype_;
  Geometry geometry_;
  ReduceLoops loops_{};
  fused::TileFunction widen_ = nullptr;
  bool mean_ = false;
};

}  // namespace

Verdict accept_reduce(const KernelQuery& query) {
  const std::string& op = query.attrs.text("op");
  const TensorType& input = query.inputs[0];
  Reduction reduction{};
  if (!parse_reduction(op, &reduction)) return Verdict::reject("no reduction is called " + op);
  if (query.outputs[0].dtype != input.dtype)
    return Verdict::reject("the output's dtype is not the input's");
  if (op == "mean" && !is_floating(input.dtype)) return Verdict::reject("mean is for floats");
  if (loops_of(reduction, input.dtype).row == nullptr)
    return Verdict::reject(op + " is not for bool");
  for (const std::int64_t axis : query.attrs.integers("axes"))
    if (axis < 0 || axis >= static_cast<std::int64_t>(input.shape.size()))
      return Verdict::reject("axis " + std::to_string(axis) + " is not in the input");
  const Geometry g = make_geometry(input.shape, query.attrs.integers("axes"));
  if (g.kept_count * g.width != query.outputs[0].count())
    return Verdict::reject("the output has not the input's kept axes");
  const bool orders = reduction == Reduction::Max || reduction == Reduction::Min;
  if (orders && g.total == 0 && query.outputs[0].count() > 0)
    return Verdict::reject(op + " of no elements");
  return Verdict::accept(static_cast<std::size_t>(g.cells() * kCell));
}

std::unique_ptr<Kernel> construct_reduce(const KernelQuery& query) {
  return std::make_unique<Reduce>(query);
}

}  // namespace ngd::kernels::portable
