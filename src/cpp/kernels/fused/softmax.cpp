// SPDX-License-Identifier: Apache-2.0
// softmax and log_softmax over any axis, and softmax_cross_entropy with integer labels and its
// gradient. The rows are processed in blocks. A block is copied to dense f32 or f64 memory if its
// rows are not dense, or are 16-bit floats.
#include "kernels/fused/softmax.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/simd.hpp"
#include "device/team.hpp"
#include "kernels/rows.hpp"
#include "kernels/shapes/indices.hpp"
#include "kernels/tiles/tiles.hpp"

namespace ngd::kernels::fused {

namespace {

constexpr std::int64_t kBlock = 1024;         // elements of a block of short rows
constexpr std::int64_t kGrainWork = 1 << 13;  // the minimum number of elements per thread

template <class T>
const SoftmaxLoops<T>& loops_of(const SoftmaxTable& table) {
  if constexpr (std::is_same_v<T, float>)
    return table.f32;
  else
    return table.f64;
}

// The rows of a tensor along one axis. `length` is the number of elements of a row, the extent of
// the axis. `inner` is the product of the extents of the axes after it, which is also the stride of
// a row's elements. Row r begins at element (r / inner) * length * inner + r % inner, where r /
// inner is rounded down.
struct Rows {
  Rows(const Shape& shape, std::size_t axis, int threads) : length(shape[axis]) {
    for (std::size_t a = 0; a < shape.size(); ++a)
      if (a < axis)
        count *= shape[a];
      else if (a > axis)
        inner *= shape[a];
    count *= inner;
    block = std::clamp<std::int64_t>(kBlock / std::max<std::int64_t>(length, 1), 1,
                                     std::max<std::int64_t>(count, 1));
    blocks = length == 0 ? 0 : divide_up(count, block);
    const std::int64_t min_blocks = kGrainWork / std::max<std::int64_t>(block * length, 1);
    pieces = std::clamp<std::int64_t>(blocks / std::max<std::int64_t>(min_blocks, 1), 1, threads);
  }
  std::int64_t begin(std::int64_t row) const { return row / inner * length * inner + row % inner; }

  std::int64_t length, count = 1, inner = 1;
  std::int64_t block, blocks;  // rows per block; the number of blocks
  std::int64_t pieces;         // the number of threads that share the blocks
};

// Copies blocks of rows between a tensor of any float dtype and dense memory of T.
template <class T>
class Stage {
 public:
  Stage(const Rows& rows, DType dtype)
      : rows_(rows),
        dtype_(dtype),
        widen_(tiles::widening(dtype)),
        narrow_(tiles::narrowing(dtype)) {}
  // Return true if the rows of the tensor are dense and of type T: the kernel then reads and writes
  // the tensor's own memory.
  bool is_direct() const { return rows_.inner == 1 && !is_half(dtype_); }

  // Return `rows` rows of a tensor, from number `row` on, as dense elements of T. If the tensor has
  // them in this form (is_direct), return a pointer into the tensor. Otherwise, copy them to
  // `buffer` and return `buffer`.
  const T* read_rows(const void* tensor, std::int64_t row, std::int64_t rows, T* buffer) const {
    if (is_direct()) return static_cast<const T*>(tensor) + row * rows_.length;
    if (is_dense_half()) {
      widen_(static_cast<const std::byte*>(tensor) + half_offset(row), nullptr, nullptr, buffer,
             rows * rows_.length);
      return buffer;
    }
    visit_elements(tensor, row, rows,
                   [&]<class S>(const S* x, std::int64_t i) { buffer[i] = T(*x); });
    return buffer;
  }
  // Return the memory in which the kernel computes rows of the result: the tensor itself if its
  // rows are dense and of type T (is_direct), and `buffer` otherwise.
  T* result_rows(void* tensor, std::int64_t row, T* buffer) const {
    return is_direct() ? static_cast<T*>(tensor) + row * rows_.length : buffer;
  }
  // Copy rows of the result from `buffer` to the tensor. Do nothing if the kernel has computed them
  // in the tensor itself (is_direct).
  void write_rows(const T* buffer, std::int64_t row, std::int64_t rows, void* tensor) const {
    if (is_direct()) return;
    if (is_dense_half()) {
      narrow_(buffer, nullptr, nullptr, static_cast<std::byte*>(tensor) + half_offset(row),
              rows * rows_.length);
      return;
    }
    visit_elements(tensor, row, rows,
                   [&]<class S>(const S* x, std::int64_t i) { *const_cast<S*>(x) = S(buffer[i]); });
  }

 private:
  bool is_dense_half() const { return rows_.inner == 1 && is_half(dtype_); }
  // Return the offset in bytes of a row in a tensor of dense rows of 16-bit floats.
  std::int64_t half_offset(std::int64_t row) const { return 2 * row * rows_.length; }

  // Call element(address, i) for each element of `rows` rows of the tensor, row by row. `address`
  // is a pointer to the element in the tensor. `i` is the index of the same element in a dense copy
  // of these rows, so that `element` can copy the element from or to that copy.
  template <class Element>
  void visit_elements(const void* tensor, std::int64_t row, std::int64_t rows,
                      Element&& element) const {
    const auto visit_as = [&]<class S>() {
      for (std::int64_t r = 0; r < rows; ++r) {
        const S* x = static_cast<const S*>(tensor) + rows_.begin(row + r);
        for (std::int64_t i = 0; i < rows_.length; ++i)
          element.template operator()<S>(x + i * rows_.inner, r * rows_.length + i);
      }
    };
    if constexpr (std::is_same_v<T, double>)
      visit_as.template operator()<double>();
    else if (dtype_ == DType::F16)
      visit_as.template operator()<Float16>();
    else if (dtype_ == DType::BF16)
      visit_as.template operator()<BFloat16>();
    else
      visit_as.template operator()<float>();
  }

  const Rows& rows_;
  DType dtype_;
  tiles::TileFunction widen_, narrow_;  // null unless the dtype is a 16-bit float
};

// The scratch memory of a thread: a block of inputs, a block of exponentials, and three values per
// row.
template <class T>
struct Workspace {
  Workspace(const Rows& rows, void* scratch, std::int64_t piece) {
    const std::int64_t elements = rows.block * rows.length;
    x = static_cast<T*>(scratch) + piece * per_piece(rows);
    e = x + elements;
    maxima = e + elements;
    sums = maxima + rows.block;
    scale = sums + rows.block;
  }
  // Return the number of elements in the scratch memory for one piece, the work of one thread.
  static std::int64_t per_piece(const Rows& rows) {
    return round_up(2 * rows.block * rows.length + 3 * rows.block, 64);
  }
  T *x, *e, *maxima, *sums, *scale;
};

// Call body(workspace, row, rows) for each block of rows: the block begins at row number `row`, and
// has `rows` rows. `workspace` is scratch memory of the calling thread. The threads divide the
// blocks among them.
template <class T, class Body>
void for_blocks(const Rows& rows, void* scratch, Body&& body) {
  device::for_pieces(rows.pieces, [&](std::int64_t piece) {
    const Workspace<T> workspace(rows, scratch, piece);
    const auto [begin, end] = device::share(rows.blocks, 1, piece, rows.pieces);
    for (std::int64_t b = begin; b < end; ++b)
      body(workspace, b * rows.block, std::min(rows.block, rows.count - b * rows.block));
  });
}

// Call the visitor with the C++ type in which the kernel computes with elements of the dtype:
// double for f64, and float for other floats.
template <class Visitor>
decltype(auto) visit_computed(DType dtype, Visitor&& visitor) {
  if (dtype == DType::F64) return visitor.template operator()<double>();
  return visitor.template operator()<float>();
}

// Return the size in bytes of the scratch memory of all threads.
std::size_t bytes_of_workspaces(const Rows& rows, DType dtype) {
  const std::size_t item = dtype == DType::F64 ? 8 : 4;
  return static_cast<std::size_t>(rows.pieces * Workspace<float>::per_piece(rows)) * item;
}

class Softmax final : public Kernel {
 public:
  Softmax(const KernelQuery& query, const Machine& machine)
      : rows_(query.inputs[0].shape, static_cast<std::size_t>(query.attrs.integer("axis")),
              machine.threads),
        table_(NGD_SIMD_SELECT(machine.simd, softmax_table)()),
        dtype_(query.inputs[0].dtype),
        is_logarithmic_(query.op == "log_softmax") {}

  std::size_t scratch_bytes() const override { return bytes_of_workspaces(rows_, dtype_); }
  std::vector<InPlace> in_place() const override { return {{0, 0}}; }

  void run(const KernelArgs& args) const override {
    visit_computed(dtype_, [&]<class T>() { run_as<T>(args); });
  }

 private:
  template <class T>
  void run_as(const KernelArgs& args) const {
    const Stage<T> stage(rows_, dtype_);
    for_blocks<T>(rows_, args.scratch,
                  [&](const Workspace<T>& w, std::int64_t row, std::int64_t rows) {
                    const T* x = stage.read_rows(args.inputs[0], row, rows, w.x);
                    T* y = stage.result_rows(args.outputs[0], row, w.x);
                    loops_of<T>(table_).exponentials(x, rows, rows_.length, w.e, w.maxima, w.sums);
                    if (is_logarithmic_)
                      loops_of<T>(table_).logarithms(x, rows, rows_.length, w.maxima, w.sums, y);
                    else
                      loops_of<T>(table_).divide(w.e, rows, rows_.length, w.sums, nullptr, y);
                    stage.write_rows(y, row, rows, args.outputs[0]);
                  });
  }

  Rows rows_;
  const SoftmaxTable& table_;
  DType dtype_;
  bool is_logarithmic_;
};

// softmax_cross_entropy and its gradient. The inputs are the logits, the labels, and for the
// gradient also dy, the adjoint of the result.
class SoftmaxCrossEntropy final : public Kernel {
 public:
  SoftmaxCrossEntropy(const KernelQuery& query, const Machine& machine)
      : rows_(query.inputs[0].shape, query.inputs[0].shape.size() - 1, machine.threads),
        table_(NGD_SIMD_SELECT(machine.simd, softmax_table)()),
        dtype_(query.inputs[0].dtype),
        labels_(query, 1, query.inputs[0].shape.back(), false),
        is_gradient_(query.inputs.size() == 3) {}

  std::size_t scratch_bytes() const override { return bytes_of_workspaces(rows_, dtype_); }
  std::vector<InPlace> in_place() const override {
    return is_gradient_ ? std::vector<InPlace>{{0, 0}} : std::vector<InPlace>{};
  }

  void run(const KernelArgs& args) const override {
    labels_.check(args.inputs[1]);
    visit_computed(dtype_, [&]<class T>() { run_as<T>(args); });
  }

 private:
  template <class T>
  void run_as(const KernelArgs& args) const {
    const Stage<T> stage(rows_, dtype_);
    for_blocks<T>(rows_, args.scratch,
                  [&](const Workspace<T>& w, std::int64_t row, std::int64_t rows) {
                    const T* x = stage.read_rows(args.inputs[0], row, rows, w.x);
                    loops_of<T>(table_).exponentials(x, rows, rows_.length, w.e, w.maxima, w.sums);
                    if (is_gradient_)
                      compute_gradient(stage, w, row, rows, args);
                    else
                      compute_losses(w, x, row, rows, args);
                  });
  }

  std::int64_t label(const KernelArgs& args, std::int64_t row) const {
    return index_at(labels_.dtype, args.inputs[1], row);
  }

  // Call `body`, a lambda with one template parameter, for the C++ type of the losses and of dy.
  // The losses and dy have one value per row.
  template <class T, class Body>
  void visit_rows(Body&& body) const {
    if constexpr (std::is_same_v<T, double>)
      body.template operator()<double>();
    else if (dtype_ == DType::F16)
      body.template operator()<Float16>();
    else if (dtype_ == DType::BF16)
      body.template operator()<BFloat16>();
    else
      body.template operator()<float>();
  }

  // For `rows` rows from number `row` on, store the loss, log(sum) + maximum - x[label]. `x` is the
  // logits of these rows, and `w` has their sums and maxima.
  template <class T>
  void compute_losses(const Workspace<T>& w, const T* x, std::int64_t row, std::int64_t rows,
                      const KernelArgs& args) const {
    visit_rows<T>([&]<class S>() {
      auto* out = static_cast<S*>(args.outputs[0]) + row;
      for (std::int64_t r = 0; r < rows; ++r)
        out[r] =
            S(std::log(w.sums[r]) + (w.maxima[r] - x[r * rows_.length + label(args, row + r)]));
    });
  }

  // For `rows` rows from number `row` on, store the gradient of the logits,
  // (softmax - one_hot) * dy.
  template <class T>
  void compute_gradient(const Stage<T>& stage, const Workspace<T>& w, std::int64_t row,
                        std::int64_t rows, const KernelArgs& args) const {
    visit_rows<T>([&]<class S>() {
      for (std::int64_t r = 0; r < rows; ++r)
        w.scale[r] = T(static_cast<const S*>(args.inputs[2])[row + r]);
    });
    T* y = stage.result_rows(args.outputs[0], row, w.x);
    // The result is (e / sum - one_hot) * dy, where e are the exponentials in w.e. For the label's
    // element, (e - sum) / sum = e / sum - 1. So first subtract the sum from this element of w.e,
    // and then divide all elements. y may be the same memory as w.e: divide() then overwrites e.
    for (std::int64_t r = 0; r < rows; ++r) {
      T& e = w.e[r * rows_.length + label(args, row + r)];
      e = e - w.sums[r];
    }
    loops_of<T>(table_).divide(w.e, rows, rows_.length, w.sums, w.scale, y);
    stage.write_rows(y, row, rows, args.outputs[0]);
  }

  Rows rows_;
  const SoftmaxTable& table_;
  DType dtype_;
  IndexCheck labels_;
  bool is_gradient_;
};

}  // namespace

Offer offer_softmax(const KernelQuery& query, const Machine& machine) {
  const TensorType& input = query.inputs[0];
  const std::int64_t axis = query.attrs.integer("axis");
  if (!is_floating(input.dtype)) return Offer::refuse("the input is not of a float dtype");
  if (query.outputs[0] != input) return Offer::refuse("the output differs from the input in type");
  if (axis < 0 || axis >= static_cast<std::int64_t>(input.shape.size()))
    return Offer::refuse("axis " + std::to_string(axis) + " is not in the input");
  return {std::make_unique<Softmax>(query, machine)};
}

Offer offer_softmax_cross_entropy(const KernelQuery& query, const Machine& machine) {
  const TensorType& logits = query.inputs[0];
  const bool is_gradient = query.op == "softmax_cross_entropy_grad";
  if (!is_floating(logits.dtype)) return Offer::refuse("the logits are not of a float dtype");
  if (logits.shape.empty()) return Offer::refuse("the logits have no axis");
  if (!is_index(query.inputs[1].dtype)) return Offer::refuse("the labels are not i32 or i64");
  if (query.inputs.size() != (is_gradient ? 3 : 2)) return Offer::refuse("wrong number of inputs");
  const TensorType losses{logits.dtype, Shape(logits.shape.begin(), logits.shape.end() - 1)};
  if (query.inputs[1].shape != losses.shape)
    return Offer::refuse("the labels do not have the logits' shape without its last axis");
  if (query.outputs[0] != (is_gradient ? logits : losses) ||
      (is_gradient && query.inputs[2] != losses))
    return Offer::refuse("dy or the output differs from the logits in type");
  return {std::make_unique<SoftmaxCrossEntropy>(query, machine)};
}

}  // namespace ngd::kernels::fused
