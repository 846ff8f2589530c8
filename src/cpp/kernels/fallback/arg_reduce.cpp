// SPDX-License-Identifier: Apache-2.0
// argmax, argmin and top_k. They choose the first of equal elements. argmax and argmin choose the
// first NaN if there is one, as NumPy does. For top_k, NaN is larger than any number.
#include <algorithm>
#include <numeric>
#include <type_traits>

#include "device/team.hpp"
#include "kernels/rows.hpp"

namespace ngd::kernels::fallback {

namespace {

constexpr std::int64_t kGrainWork = 1 << 14;  // the minimum of elements per thread

// Return the value that represents an element in comparisons: 16-bit floats become float32.
template <class T>
auto comparable(T value) {
  if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>)
    return static_cast<float>(value);
  else
    return value;
}

// Return true if `challenger` replaces `best` as the largest (is_max) or smallest element. The
// first NaN replaces any number, and is never replaced.
template <bool is_max, class T>
bool is_more_extreme(T challenger, T best) {
  if (best != best) return false;
  if (challenger != challenger) return true;
  return is_max ? challenger > best : challenger < best;
}

// Return the index of the largest (is_max) or smallest of `length` elements, or of the first NaN.
// If several elements are equal, the first one counts. Elements are `stride` apart.
template <bool is_max, class T>
std::int64_t best_index(const T* x, std::int64_t length, std::int64_t stride) {
  std::int64_t index = 0;
  auto best = comparable(x[0]);
  for (std::int64_t i = 1; i < length; ++i) {
    const auto value = comparable(x[i * stride]);
    if (is_more_extreme<is_max>(value, best)) {
      best = value;
      index = i;
    }
  }
  return index;
}

class ArgReduce final : public Kernel {
 public:
  explicit ArgReduce(const KernelQuery& query)
      : dtype_(query.inputs[0].dtype), is_max_(query.op == "argmax") {
    const Shape& shape = query.inputs[0].shape;
    const auto axis = static_cast<std::size_t>(query.attrs.integer("axis"));
    length_ = shape[axis];
    for (std::size_t a = 0; a < axis; ++a) outer_ *= shape[a];
    for (std::size_t a = axis + 1; a < shape.size(); ++a) inner_ *= shape[a];
  }

  void run(const KernelArgs& args) const override {
    auto* out = static_cast<std::int64_t*>(args.outputs[0]);
    visit_dtype(dtype_, [&]<class T>() {
      const auto* x = static_cast<const T*>(args.inputs[0]);
      device::for_range(outer_ * inner_, std::max<std::int64_t>(1, kGrainWork / length_),
                        [&](std::int64_t begin, std::int64_t end) {
                          for (std::int64_t i = begin; i < end; ++i) {
                            const T* first = x + i / inner_ * length_ * inner_ + i % inner_;
                            out[i] = is_max_ ? best_index<true>(first, length_, inner_)
                                             : best_index<false>(first, length_, inner_);
                          }
                        });
    });
  }

 private:
  DType dtype_;
  bool is_max_;
  std::int64_t length_ = 1, outer_ = 1, inner_ = 1;
};

// Return true if a is less than b. NaN is larger than any number.
template <class T>
bool less(T a, T b) {
  return a < b || (b != b && a == a);
}

// Store the k largest or smallest elements of a row in `values`, and their indices in `indices`. A
// result whose pointer is null is not stored. `positions` is scratch memory for `length` indices.
// After the call, its first k elements are the indices of the result, best value first.
template <class T>
void select_top_k(const T* x, std::int64_t length, std::int64_t k, bool is_largest,
                  std::int64_t* positions, T* values, std::int64_t* indices) {
  std::iota(positions, positions + length, 0);
  const auto precedes = [=](std::int64_t a, std::int64_t b) {
    const auto value_a = comparable(x[a]), value_b = comparable(x[b]);
    const bool is_less = less(value_a, value_b), is_greater = less(value_b, value_a);
    return is_less == is_greater ? a < b : is_largest == is_greater;
  };
  if (k < length) std::nth_element(positions, positions + k, positions + length, precedes);
  std::sort(positions, positions + k, precedes);
  if (indices != nullptr) std::copy(positions, positions + k, indices);
  if (values != nullptr)
    std::transform(positions, positions + k, values,
                   [x](std::int64_t position) { return x[position]; });
}

class TopK final : public Kernel {
 public:
  TopK(const KernelQuery& query, const Machine& machine)
      : dtype_(query.inputs[0].dtype),
        largest_(query.attrs.integer("largest", 1) != 0),
        length_(query.inputs[0].shape.back()),
        k_(query.outputs[0].shape.back()) {
    const Shape& shape = query.inputs[0].shape;
    for (std::size_t a = 0; a + 1 < shape.size(); ++a) rows_ *= shape[a];
    const std::int64_t max_pieces = std::min<std::int64_t>(rows_, machine.threads);
    pieces_ = std::clamp<std::int64_t>(rows_ * length_ / kGrainWork, 1,
                                       std::max<std::int64_t>(max_pieces, 1));
  }

  // Return the bytes of scratch memory, for the indices of one row per thread.
  std::size_t scratch_bytes() const override {
    return static_cast<std::size_t>(pieces_ * length_) * sizeof(std::int64_t);
  }

  void run(const KernelArgs& args) const override {
    visit_dtype(dtype_, [&]<class T>() {
      const auto* x = static_cast<const T*>(args.inputs[0]);
      auto* values = static_cast<T*>(args.outputs[0]);
      auto* indices = static_cast<std::int64_t*>(args.outputs[1]);
      device::for_pieces(pieces_, [&](std::int64_t piece) {
        auto* positions = static_cast<std::int64_t*>(args.scratch) + piece * length_;
        const auto [begin, end] = device::share(rows_, 1, piece, pieces_);
        for (std::int64_t row = begin; row < end; ++row)
          select_top_k(x + row * length_, length_, k_, largest_, positions,
                       values == nullptr ? nullptr : values + row * k_,
                       indices == nullptr ? nullptr : indices + row * k_);
      });
    });
  }

 private:
  DType dtype_;
  bool largest_;
  std::int64_t length_, k_, rows_ = 1, pieces_ = 1;
};

}  // namespace

Offer offer_arg_reduce(const KernelQuery& query, const Machine&) {
  const TensorType& input = query.inputs[0];
  const std::int64_t axis = query.attrs.integer("axis");
  if (axis < 0 || axis >= static_cast<std::int64_t>(input.shape.size()))
    return Offer::refuse("axis " + std::to_string(axis) + " is not in the input");
  if (query.outputs[0].dtype != DType::I64) return Offer::refuse("the output is not i64");
  if (input.shape[static_cast<std::size_t>(axis)] == 0)
    return Offer::refuse(std::string(query.op) + " of no elements");
  if (query.outputs[0].count() * input.shape[static_cast<std::size_t>(axis)] != input.count())
    return Offer::refuse("the output does not have the input's other axes");
  return {std::make_unique<ArgReduce>(query)};
}

Offer offer_top_k(const KernelQuery& query, const Machine& machine) {
  if (query.outputs.size() != 2)
    return Offer::refuse("the outputs are not two arrays, values and positions");
  const TensorType& input = query.inputs[0];
  const TensorType &values = query.outputs[0], &positions = query.outputs[1];
  if (values.dtype != input.dtype)
    return Offer::refuse("the values differ from the input in dtype");
  if (positions.dtype != DType::I64) return Offer::refuse("the positions are not i64");
  if (values.shape != positions.shape) return Offer::refuse("the outputs have different shapes");
  if (input.shape.empty() || input.shape.size() != positions.shape.size() ||
      !std::equal(input.shape.begin(), input.shape.end() - 1, positions.shape.begin()))
    return Offer::refuse("the outputs do not have the input's other axes");
  if (positions.shape.back() > input.shape.back())
    return Offer::refuse("the outputs have more elements along the axis than the input");
  return {std::make_unique<TopK>(query, machine)};
}

}  // namespace ngd::kernels::fallback
