// SPDX-License-Identifier: Apache-2.0
// grouped_matmul and grouped_weight_grad: one matrix product for each group of rows.
//
// Group g has the rows from offsets[g - 1] to offsets[g] - 1; group 0 begins at row 0. The offsets
// are elements of an input, so the shape of a group's product is known only when the kernel runs.
// The threads share each product. A group without rows has no product.
//
// The template parameter `Products` is a class that multiplies. Its constructor takes the largest
// MatmulShape, the dtype of all arrays, and the Machine. It has scratch_bytes() and run(args, m, k,
// a, b, out), which computes a product of m rows and depth k. The operands begin at the elements a
// and b of the inputs, and the result at element `out` of the output.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "device/team.hpp"
#include "kernels/shapes/indices.hpp"
#include "kernels/shapes/matmul_shape.hpp"

namespace ngd::kernels {

// The range of rows of each group. The operand `offsets` contains the end of each range.
class RowGroups {
 public:
  RowGroups(const TensorType& offsets, std::int64_t rows)
      : dtype_(offsets.dtype), count_(offsets.count()), rows_(rows) {}

  std::int64_t count() const { return count_; }

  // Throw std::out_of_range for the first offset that is less than the previous offset, or greater
  // than the number of rows. The last offset may be less than the number of rows.
  void check(const void* offsets) const {
    for (std::int64_t group = 0; group < count_; ++group) {
      const std::int64_t before = begin(offsets, group), offset = end(offsets, group);
      if (offset < before || offset > rows_)
        throw std::out_of_range(concat("grouped_matmul: expected offsets from 0 to ", rows_,
                                       " that do not decrease; got ", offset, " after ", before,
                                       " at [", group, "] of the offsets"));
    }
  }

  // Return the first row of a group. end() returns the row after its last one.
  std::int64_t begin(const void* offsets, std::int64_t group) const {
    return group > 0 ? end(offsets, group - 1) : 0;
  }
  std::int64_t end(const void* offsets, std::int64_t group) const {
    return index_at(dtype_, offsets, group);
  }

 private:
  DType dtype_;
  std::int64_t count_, rows_;
};

// The common part of the kernels of grouped_matmul and grouped_weight_grad, which compute one
// matrix product for each group of rows.
template <class Products>
class Grouped : public Kernel {
 public:
  Grouped(const KernelQuery& query, const MatmulShape& largest, const Machine& machine)
      : shape_(largest),
        groups_(query.inputs[2], query.inputs[0].shape[0]),
        products_(largest, query.outputs[0].dtype, machine),
        item_bytes_(static_cast<std::int64_t>(size_of(query.outputs[0].dtype))) {}

  std::size_t scratch_bytes() const override { return products_.scratch_bytes(); }

 protected:
  // Store zeros in `count` elements of the result, from element `first` on.
  void clear(const KernelArgs& args, std::int64_t first, std::int64_t count) const {
    constexpr std::int64_t kGrainBytes = 1 << 17;
    std::byte* begin = static_cast<std::byte*>(args.outputs[0]) + first * item_bytes_;
    device::for_range(count * item_bytes_, kGrainBytes, [&](std::int64_t from, std::int64_t to) {
      std::fill(begin + from, begin + to, std::byte{0});
    });
  }

  MatmulShape shape_;
  RowGroups groups_;
  Products products_;
  std::int64_t item_bytes_;
};

// grouped_matmul: for each group of rows of the first input, the product of these rows and the
// matrix of the group in the second input. Rows after the last group become 0 in the result.
template <class Products>
class GroupedMatmul final : public Grouped<Products> {
 public:
  GroupedMatmul(const KernelQuery& query, const Machine& machine)
      : Grouped<Products>(query, shape_of(query), machine) {}

  void run(const KernelArgs& args) const override {
    const void* offsets = args.inputs[2];
    this->groups_.check(offsets);
    const std::int64_t n = this->shape_.n, k = this->shape_.k;
    if (n == 0) return;
    std::int64_t end = 0;
    for (std::int64_t group = 0; group < this->groups_.count(); ++group) {
      const std::int64_t begin = end;
      end = this->groups_.end(offsets, group);
      if (begin < end)
        this->products_.run(args, end - begin, k, begin * k, group * k * n, begin * n);
    }
    this->clear(args, end * n, (this->shape_.m - end) * n);
  }

 private:
  // Return the shape of the largest product: one group has all rows.
  static MatmulShape shape_of(const KernelQuery& query) {
    const Shape& out = query.outputs[0].shape;
    return {out[0], out[1], query.inputs[0].shape[1], false,
            query.attrs.integer("transpose_b", 0) != 0};
  }
};

// grouped_weight_grad: for each group, the product of its rows of the first operand, transposed,
// and its rows of the second. The result of a group without rows is 0.
template <class Products>
class GroupedWeightGrad final : public Grouped<Products> {
 public:
  GroupedWeightGrad(const KernelQuery& query, const Machine& machine)
      : Grouped<Products>(query,
                          {query.outputs[0].shape[1], query.outputs[0].shape[2],
                           query.inputs[0].shape[0], true, false},
                          machine) {}

  void run(const KernelArgs& args) const override {
    const void* offsets = args.inputs[2];
    this->groups_.check(offsets);
    const std::int64_t m = this->shape_.m, n = this->shape_.n;
    if (m * n == 0) return;
    for (std::int64_t group = 0; group < this->groups_.count(); ++group) {
      const std::int64_t begin = this->groups_.begin(offsets, group),
                         rows = this->groups_.end(offsets, group) - begin, out = group * m * n;
      if (rows > 0)
        this->products_.run(args, m, rows, begin * m, begin * n, out);
      else
        this->clear(args, out, m * n);
    }
  }
};

// Return the reason why the kernels in this file cannot compute a query, or an empty text if they
// can.
inline std::string refusal_of_grouped(const KernelQuery& query) {
  const DType dtype = query.outputs[0].dtype;
  if (!is_floating(dtype)) return "the output is not of a float dtype";
  if (query.inputs[0].dtype != dtype || query.inputs[1].dtype != dtype) return "dtypes differ";
  const TensorType& offsets = query.inputs[2];
  if (!is_index(offsets.dtype)) return "the offsets are not i32 or i64";
  if (offsets.shape.size() != 1) return "the offsets do not have exactly one axis";
  const Shape &a = query.inputs[0].shape, &b = query.inputs[1].shape, &out = query.outputs[0].shape;
  const std::int64_t groups = offsets.shape[0];
  if (a.size() != 2) return "the rows are not a matrix";
  if (query.op == "grouped_weight_grad")
    return b.size() == 2 && a[0] == b[0] && out == Shape{groups, a[1], b[1]}
               ? ""
               : "the shapes do not match";
  if (out.size() != 2 || out[0] != a[0]) return "the shapes do not match";
  Shape weight{groups, a[1], out[1]};
  if (query.attrs.integer("transpose_b", 0) != 0) std::swap(weight[1], weight[2]);
  return b == weight ? "" : "the shapes do not match";
}

}  // namespace ngd::kernels
