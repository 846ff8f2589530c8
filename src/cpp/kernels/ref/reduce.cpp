// SPDX-License-Identifier: Apache-2.0
// sum, mean, max, min and prod over any axes.
//
// Neighbouring axes of one kind, reduced or kept, are merged. If the last is reduced, a segment is
// a piece of a dense row and has one result; if it is kept, a segment is a block of rows and has a
// result a column. The segments of a result are cut into chunks, whose size does not depend on the
// number of threads; a task is one chunk of one kept index and piece of columns. Where there are
// several chunks their accumulators meet in scratch and are combined as a balanced tree.
#include "kernels/ref/reduce.hpp"

#include <algorithm>
#include <cstring>

#include "base/error.hpp"
#include "base/simd.hpp"
#include "device/threads.hpp"
#include "kernels/fused/tiles.hpp"
#include "kernels/rows.hpp"

namespace ngd::kernels::ref {

namespace {

constexpr std::int64_t kChunk = 1 << 16;      // elements of a chunk, about
constexpr std::int64_t kMaxColumns = 512;     // columns of a task
constexpr std::int64_t kGrainWork = 1 << 15;  // elements that are worth a thread
constexpr std::int64_t kCell = 8;             // bytes of scratch an accumulator

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

  std::int64_t cells() const {
    return chunks > 1 ? kept_count * column_pieces * chunks * columns : 0;
  }
};

Geometry make_geometry(const Shape& shape, const std::vector<std::int64_t>& axes) {
  struct Group {
    Axis axis;
    bool reduced;
  };
  std::vector<Group> groups;
  const Shape strides = row_major_strides(shape);
  for (std::size_t a = 0; a < shape.size(); ++a) {
    if (shape[a] == 1) continue;
    const bool reduced = std::find(axes.begin(), axes.end(), a) != axes.end();
    if (!groups.empty() && groups.back().reduced == reduced) {
      groups.back().axis.length *= shape[a];
      groups.back().axis.stride = strides[a];
    } else {
      groups.push_back({{shape[a], strides[a]}, reduced});
    }
  }
  Geometry g;
  for (const Group& group : groups)
    if (group.reduced) g.total *= group.axis.length;
  g.by_rows = groups.empty() || groups.back().reduced;
  if (!groups.empty() && !g.by_rows) {
    g.width = groups.back().axis.length;
    groups.pop_back();
  }
  if (!groups.empty() && groups.back().reduced) {
    g.along = groups.back().axis;
    groups.pop_back();
  }
  for (const Group& group : groups) {
    (group.reduced ? g.reduced : g.kept).push_back(group.axis);
    (group.reduced ? g.reduced_count : g.kept_count) *= group.axis.length;
  }
  g.columns = std::clamp<std::int64_t>(g.width, 1, kMaxColumns);
  g.column_pieces = (g.width + g.columns - 1) / g.columns;
  g.piece = std::max(kRowBlock, kChunk / g.columns);
  g.pieces = (g.along.length + g.piece - 1) / g.piece;
  const std::int64_t segment = std::max<std::int64_t>(1, std::min(g.piece, g.along.length));
  g.chunk = std::max<std::int64_t>(1, kChunk / (segment * g.columns));
  g.chunks = std::max<std::int64_t>(1, (g.reduced_count * g.pieces + g.chunk - 1) / g.chunk);
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
    const Geometry& g = geometry_;
    const std::int64_t tasks = g.kept_count * g.column_pieces * g.chunks;
    const std::int64_t work = std::max<std::int64_t>(1, g.total / g.chunks) * g.columns;
    device::parallel_for(tasks, std::max<std::int64_t>(1, kGrainWork / work),
                         [&](std::int64_t begin, std::int64_t end) {
                           for (std::int64_t task = begin; task < end; ++task) run_task(task, args);
                         });
    if (g.chunks == 1) return;
    device::parallel_for(g.kept_count * g.column_pieces, 64,
                         [&](std::int64_t begin, std::int64_t end) {
                           for (std::int64_t i = begin; i < end; ++i) combine_chunks(i, args);
                         });
  }

 private:
  std::byte* scratch_cells(const KernelArgs& args, std::int64_t task) const {
    return static_cast<std::byte*>(args.scratch) + task * geometry_.columns * kCell;
  }

  std::int64_t columns_of(std::int64_t column_piece) const {
    return std::min(geometry_.columns, geometry_.width - column_piece * geometry_.columns);
  }

  void run_task(std::int64_t task, const KernelArgs& args) const {
    const Geometry& g = geometry_;
    const std::int64_t chunk = task % g.chunks, result = task / g.chunks;
    const std::int64_t column_piece = result % g.column_pieces;
    const std::int64_t base =
        offset_of(g.kept, result / g.column_pieces) + column_piece * g.columns;
    alignas(64) std::byte own[kMaxColumns * kCell];
    std::byte* cells = g.chunks == 1 ? own : scratch_cells(args, task);
    const std::int64_t columns = columns_of(column_piece);
    loops_.clear(cells, columns);
    const std::int64_t segments = g.reduced_count * g.pieces;
    for (std::int64_t s = chunk * g.chunk; s < std::min(segments, (chunk + 1) * g.chunk); ++s) {
      const std::int64_t begin = s % g.pieces * g.piece;
      const std::int64_t offset =
          base + offset_of(g.reduced, s / g.pieces) + begin * g.along.stride;
      add_segment(args.inputs[0], offset, std::min(g.piece, g.along.length - begin), columns,
                  cells);
    }
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
    const std::int64_t columns = columns_of(result % g.column_pieces);
    for (std::int64_t apart = 1; apart < g.chunks; apart *= 2)
      for (std::int64_t c = 0; c + apart < g.chunks; c += 2 * apart)
        loops_.merge(scratch_cells(args, result * g.chunks + c),
                     scratch_cells(args, result * g.chunks + c + apart), columns);
    store(result, scratch_cells(args, result * g.chunks), columns, args.outputs[0]);
  }

  void store(std::int64_t result, const std::byte* cells, std::int64_t columns,
             void* output) const {
    const Geometry& g = geometry_;
    const std::int64_t at =
        result / g.column_pieces * g.width + result % g.column_pieces * g.columns;
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

}  // namespace ngd::kernels::ref
