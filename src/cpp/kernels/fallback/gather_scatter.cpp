// SPDX-License-Identifier: Apache-2.0
// The kernels of gather, scatter_add, row_number (the flat index of a row), one_hot and iota.
#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "device/team.hpp"
#include "kernels/rows.hpp"
#include "kernels/shapes/indices.hpp"

namespace ngd::kernels::fallback {

namespace {

constexpr std::int64_t kGrainWork = 1 << 15;  // the minimum of elements per thread

// Return the grain of device::for_range(), the number of iterations that are enough work for one
// thread. Each iteration processes `work` elements.
std::int64_t grain_for(std::int64_t work) {
  return std::max<std::int64_t>(1, kGrainWork / std::max<std::int64_t>(1, work));
}

// A tensor that is seen as [outer, length, inner], and the indices that select along its middle
// axis. `indices` is the number of the indices, and `range` checks that they are in the middle
// axis.
struct Axes {
  Axes(const KernelQuery& query, const Shape& tensor_shape)
      : index_dtype(query.inputs[1].dtype),
        indices(query.inputs[1].count()),
        length(tensor_shape[static_cast<std::size_t>(query.attrs.integer("axis"))]),
        range(query, 1, length) {
    const auto axis = static_cast<std::size_t>(query.attrs.integer("axis"));
    for (std::size_t a = 0; a < axis; ++a) outer *= tensor_shape[a];
    for (std::size_t a = axis + 1; a < tensor_shape.size(); ++a) inner *= tensor_shape[a];
  }

  // Return index number i of `values` as a number >= 0. As in NumPy, a negative index counts from
  // the end of the axis.
  std::int64_t index_of(const void* values, std::int64_t i) const {
    const std::int64_t index = index_at(index_dtype, values, i);
    return index < 0 ? index + length : index;
  }

  DType index_dtype;
  std::int64_t indices, length, outer = 1, inner = 1;
  IndexCheck range;
};

// gather from a tensor that is seen as [outer, length, inner]. For each o < outer and each index i,
// copy the `inner` elements at [o, i].
class Gather final : public Kernel {
 public:
  explicit Gather(const KernelQuery& query)
      : axes_(query, query.inputs[0].shape),
        run_bytes_(static_cast<std::size_t>(axes_.inner) * size_of(query.outputs[0].dtype)) {}

  void run(const KernelArgs& args) const override {
    const Axes& a = axes_;
    a.range.check(args.inputs[1]);
    device::for_range(a.outer * a.indices, grain_for(a.inner),
                      [&](std::int64_t begin, std::int64_t end) {
                        for (std::int64_t i = begin; i < end; ++i) {
                          const std::int64_t from =
                              i / a.indices * a.length + a.index_of(args.inputs[1], i % a.indices);
                          std::memcpy(static_cast<std::byte*>(args.outputs[0]) +
                                          i * static_cast<std::int64_t>(run_bytes_),
                                      static_cast<const std::byte*>(args.inputs[0]) +
                                          from * static_cast<std::int64_t>(run_bytes_),
                                      run_bytes_);
                        }
                      });
  }

 private:
  Axes axes_;
  std::size_t run_bytes_;
};

// scatter_add. A line is all elements along the indexed axis. The threads share the lines, and one
// thread adds all updates of a line, in the order of the indices.
class ScatterAdd final : public Kernel {
 public:
  explicit ScatterAdd(const KernelQuery& query)
      : axes_(query, query.outputs[0].shape), dtype_(query.outputs[0].dtype) {}

  // Return the bytes of scratch memory, which has the float32 sums of 16-bit floats. Other dtypes
  // need none.
  std::size_t scratch_bytes() const override {
    const std::int64_t sums = is_half(dtype_) ? axes_.outer * axes_.length * axes_.inner : 0;
    return static_cast<std::size_t>(sums) * sizeof(float);
  }

  void run(const KernelArgs& args) const override {
    const Axes& a = axes_;
    a.range.check(args.inputs[1]);
    const std::int64_t work = std::max<std::int64_t>(a.length, a.indices);
    device::for_range(a.outer * a.inner, grain_for(work),
                      [&](std::int64_t begin, std::int64_t end) {
                        visit_dtype(dtype_, [&]<class T>() { add<T>(args, begin, end); });
                      });
  }

 private:
  // Set the lines from `begin` to end - 1 to 0, and add their updates. A line is all elements along
  // the indexed axis. There are outer * inner lines.
  template <class T>
  void add(const KernelArgs& args, std::int64_t begin, std::int64_t end) const {
    using Sum = SumType<T>;
    const Axes& a = axes_;
    auto* output = static_cast<T*>(args.outputs[0]);
    auto* sums = static_cast<Sum*>(std::is_same_v<Sum, T> ? args.outputs[0] : args.scratch);
    const auto* updates = static_cast<const T*>(args.inputs[0]);
    while (begin < end) {
      const std::int64_t outer = begin / a.inner, first = begin % a.inner;
      const std::int64_t last = std::min(a.inner, first + end - begin);
      for (std::int64_t row = 0; row < a.length; ++row) {
        Sum* to = sums + (outer * a.length + row) * a.inner;
        std::fill(to + first, to + last, Sum(0));
      }
      for (std::int64_t i = 0; i < a.indices; ++i) {
        Sum* to = sums + (outer * a.length + a.index_of(args.inputs[1], i)) * a.inner;
        const T* from = updates + (outer * a.indices + i) * a.inner;
        for (std::int64_t j = first; j < last; ++j)
          to[j] = wrapping_sum<Sum>(to[j], static_cast<Sum>(from[j]));
      }
      if constexpr (!std::is_same_v<Sum, T>)
        for (std::int64_t row = 0; row < a.length; ++row)
          for (std::int64_t j = first; j < last; ++j) {
            const std::int64_t element = (outer * a.length + row) * a.inner + j;
            output[element] = T(sums[element]);
          }
      begin += last - first;
    }
  }

  Axes axes_;
  DType dtype_;
};

// row_number: the flat index of a row in row-major order (as numpy.ravel_multi_index), computed
// from one index per axis. The first input has the indices of the outermost axis.
class RowNumber final : public Kernel {
 public:
  explicit RowNumber(const KernelQuery& query) : count_(query.outputs[0].count()) {
    const std::vector<std::int64_t>& extents = query.attrs.integers("extents");
    for (std::size_t i = 0; i < query.inputs.size(); ++i)
      ranges_.emplace_back(query, i, extents[i]);
  }

  void run(const KernelArgs& args) const override {
    for (std::size_t i = 0; i < ranges_.size(); ++i) ranges_[i].check(args.inputs[i]);
    auto* rows = static_cast<std::int64_t*>(args.outputs[0]);
    device::for_range(count_, kGrainWork, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t element = begin; element < end; ++element) {
        std::int64_t row = 0;
        for (std::size_t i = 0; i < ranges_.size(); ++i) {
          const std::int64_t length = ranges_[i].length;
          const std::int64_t index = index_at(ranges_[i].dtype, args.inputs[i], element);
          row = row * length + (index < 0 ? index + length : index);
        }
        rows[element] = row;
      }
    });
  }

 private:
  std::int64_t count_;
  std::vector<IndexCheck> ranges_;
};

// one_hot. The row of an index is 1 at the index and 0 elsewhere. An index out of range gives
// zeros.
class OneHot final : public Kernel {
 public:
  explicit OneHot(const KernelQuery& query)
      : index_dtype_(query.inputs[0].dtype),
        dtype_(query.outputs[0].dtype),
        rows_(query.inputs[0].count()),
        depth_(query.outputs[0].shape.back()) {}

  void run(const KernelArgs& args) const override {
    visit_dtype(dtype_, [&]<class T>() {
      const T one(static_cast<SumType<T>>(1));
      auto* out = static_cast<T*>(args.outputs[0]);
      device::for_range(rows_, grain_for(depth_), [&](std::int64_t begin, std::int64_t end) {
        std::memset(static_cast<void*>(out + begin * depth_), 0,
                    static_cast<std::size_t>((end - begin) * depth_) * sizeof(T));
        visit_dtype(index_dtype_, [&]<class Index>() {
          if constexpr (std::is_integral_v<Index>)
            for (std::int64_t row = begin; row < end; ++row) {
              const Index index = static_cast<const Index*>(args.inputs[0])[row];
              // As an unsigned number, a negative index is larger than depth_, so one comparison
              // excludes both negative and too large indices.
              if (static_cast<std::uint64_t>(index) < static_cast<std::uint64_t>(depth_))
                out[row * depth_ + static_cast<std::int64_t>(index)] = one;
            }
        });
      });
    });
  }

 private:
  DType index_dtype_, dtype_;
  std::int64_t rows_, depth_;
};

// iota. Each element of the output is its own index along the axis.
class Iota final : public Kernel {
 public:
  explicit Iota(const KernelQuery& query)
      : dtype_(query.outputs[0].dtype), count_(query.outputs[0].count()) {
    const auto axis = static_cast<std::size_t>(query.attrs.integer("axis"));
    const Shape& shape = query.outputs[0].shape;
    length_ = shape[axis];
    for (std::size_t a = axis + 1; a < shape.size(); ++a) inner_ *= shape[a];
  }

  void run(const KernelArgs& args) const override {
    visit_dtype(dtype_, [&]<class T>() {
      auto* out = static_cast<T*>(args.outputs[0]);
      device::for_range(count_, kGrainWork, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i)
          out[i] = T(static_cast<SumType<T>>(i / inner_ % length_));
      });
    });
  }

 private:
  DType dtype_;
  std::int64_t count_, length_ = 1, inner_ = 1;
};

// Return the reason why gather cannot read `part` from `tensor`, or scatter_add cannot add `part`
// to `tensor`, or an empty text if they can. The query's input 1 has the indices. `part` must have
// the dtype of `tensor`. The shape of `part` must be the shape of `tensor` with the indexed axis
// replaced by the axes of the indices.
std::string refusal_of(const KernelQuery& query, const TensorType& tensor, const TensorType& part) {
  const std::int64_t axis = query.attrs.integer("axis");
  if (axis < 0 || axis >= static_cast<std::int64_t>(tensor.shape.size()))
    return "axis " + std::to_string(axis) + " is not in the tensor";
  if (!is_index(query.inputs[1].dtype)) return "the indices are not i32 or i64";
  if (tensor.dtype != part.dtype) return "dtypes differ";
  Shape expected(tensor.shape.begin(), tensor.shape.begin() + axis);
  const Shape& indices = query.inputs[1].shape;
  expected.insert(expected.end(), indices.begin(), indices.end());
  expected.insert(expected.end(), tensor.shape.begin() + axis + 1, tensor.shape.end());
  if (part.shape != expected)
    return "the part does not have the axes of the indices in place of the axis";
  return "";
}

}  // namespace

Offer offer_gather(const KernelQuery& query, const Machine&) {
  std::string refusal = refusal_of(query, query.inputs[0], query.outputs[0]);
  if (!refusal.empty()) return Offer::refuse(std::move(refusal));
  return {std::make_unique<Gather>(query)};
}

Offer offer_scatter_add(const KernelQuery& query, const Machine&) {
  std::string refusal = refusal_of(query, query.outputs[0], query.inputs[0]);
  if (!refusal.empty()) return Offer::refuse(std::move(refusal));
  return {std::make_unique<ScatterAdd>(query)};
}

Offer offer_row_number(const KernelQuery& query, const Machine&) {
  for (const char* name : {"extents", "axes"})
    if (query.attrs.integers(name).size() != query.inputs.size())
      return Offer::refuse(concat("`", name, "` does not have one number per array of indices"));
  for (const TensorType& input : query.inputs) {
    if (!is_index(input.dtype)) return Offer::refuse("the indices are not i32 or i64");
    if (input.shape != query.outputs[0].shape) return Offer::refuse("shapes differ");
  }
  if (query.outputs[0].dtype != DType::I64) return Offer::refuse("the output is not i64");
  return {std::make_unique<RowNumber>(query)};
}

Offer offer_one_hot(const KernelQuery& query, const Machine&) {
  if (!is_integer(query.inputs[0].dtype)) return Offer::refuse("the indices are not integers");
  Shape rows = query.outputs[0].shape;
  if (rows.empty()) return Offer::refuse("the output has no axis");
  rows.pop_back();
  if (rows != query.inputs[0].shape)
    return Offer::refuse("the output does not have the indices' shape and one more axis");
  return {std::make_unique<OneHot>(query)};
}

Offer offer_iota(const KernelQuery& query, const Machine&) {
  const std::int64_t axis = query.attrs.integer("axis");
  if (axis < 0 || axis >= static_cast<std::int64_t>(query.outputs[0].shape.size()))
    return Offer::refuse("axis " + std::to_string(axis) + " is not in the output");
  return {std::make_unique<Iota>(query)};
}

}  // namespace ngd::kernels::fallback
