// SPDX-License-Identifier: Apache-2.0
// argmax, argmin and top_k: the first of equals; NaN is more extreme than any number, as in NumPy.
#include <algorithm>
#include <numeric>
#include <type_traits>

#include "device/team.hpp"
#include "kernels/rows.hpp"

namespace ngd::kernels::fallback {

namespace {

constexpr std::int64_t kGrainWork = 1 << 14;  // elements that are worth a thread

// How elements are compared: two-byte floats as float32.
template <class T>
auto comparable(T value) {
  if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>)
    return static_cast<float>(value);
  else
    return value;
}

template <bool maximum, class T>
bool beats(T challenger, T best) {
  if (best != best) return false;
  if (challenger != challenger) return true;
  return maximum ? challenger > best : challenger < best;
}

template <bool maximum, class T>
std::int64_t best_index(const T* x, std::int64_t length, std::int64_t stride) {
  std::int64_t index = 0;
  auto best = comparable(x[0]);
  for (std::int64_t i = 1; i < length; ++i) {
    const auto value = comparable(x[i * stride]);
    if (beats<maximum>(value, best)) {
      best = value;
      index = i;
    }
  }
  return index;
}

class ArgReduce final : public Kernel {
 public:
  explicit ArgReduce(const KernelQuery& query)
      : dtype_(query.inputs[0].dtype), maximum_(query.op == "argmax") {
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
                            out[i] = maximum_ ? best_index<true>(first, length_, inner_)
                                              : best_index<false>(first, length_, inner_);
                          }
                        });
    });
  }

 private:
  DType dtype_;
  bool maximum_;
  std::int64_t length_ = 1, outer_ = 1, inner_ = 1;
};

// NaN is larger than any number.
template <class T>
bool less(T a, T b) {
  return a < b || (b != b && a == a);
}

// Orders all places by value, only as far as the first k need it, in room for all of them. What is
// not asked for is null.
template <class T>
void most_extreme(const T* x, std::int64_t length, std::int64_t k, bool largest,
                  std::int64_t* places, T* values, std::int64_t* found) {
  std::iota(places, places + length, 0);
  const auto before = [=](std::int64_t a, std::int64_t b) {
    const auto of_a = comparable(x[a]), of_b = comparable(x[b]);
    const bool rises = less(of_a, of_b), falls = less(of_b, of_a);
    return rises == falls ? a < b : largest == falls;
  };
  if (k < length) std::nth_element(places, places + k, places + length, before);
  std::sort(places, places + k, before);
  if (found != nullptr) std::copy(places, places + k, found);
  if (values != nullptr)
    std::transform(places, places + k, values, [x](std::int64_t place) { return x[place]; });
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
    const std::int64_t most = std::min<std::int64_t>(rows_, machine.threads);
    pieces_ =
        std::clamp<std::int64_t>(rows_ * length_ / kGrainWork, 1, std::max<std::int64_t>(most, 1));
  }

  // A line's places for each thread.
  std::size_t scratch_bytes() const override {
    return static_cast<std::size_t>(pieces_ * length_) * sizeof(std::int64_t);
  }

  void run(const KernelArgs& args) const override {
    visit_dtype(dtype_, [&]<class T>() {
      const auto* x = static_cast<const T*>(args.inputs[0]);
      auto* values = static_cast<T*>(args.outputs[0]);
      auto* found = static_cast<std::int64_t*>(args.outputs[1]);
      device::for_pieces(pieces_, [&](std::int64_t piece) {
        auto* places = static_cast<std::int64_t*>(args.scratch) + piece * length_;
        const auto [begin, end] = device::share(rows_, 1, piece, pieces_);
        for (std::int64_t row = begin; row < end; ++row)
          most_extreme(x + row * length_, length_, k_, largest_, places,
                       values == nullptr ? nullptr : values + row * k_,
                       found == nullptr ? nullptr : found + row * k_);
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
    return Offer::refuse("the output has not the input's other axes");
  return {std::make_unique<ArgReduce>(query)};
}

Offer offer_top_k(const KernelQuery& query, const Machine& machine) {
  if (query.outputs.size() != 2) return Offer::refuse("the outputs are not values and places");
  const TensorType& input = query.inputs[0];
  const TensorType &values = query.outputs[0], &places = query.outputs[1];
  if (values.dtype != input.dtype) return Offer::refuse("the values have not the input's dtype");
  if (places.dtype != DType::I64) return Offer::refuse("the places are not i64");
  if (values.shape != places.shape) return Offer::refuse("the outputs have different shapes");
  if (input.shape.empty() || input.shape.size() != places.shape.size() ||
      !std::equal(input.shape.begin(), input.shape.end() - 1, places.shape.begin()))
    return Offer::refuse("the outputs have not the input's other axes");
  if (places.shape.back() > input.shape.back())
    return Offer::refuse("the outputs have more places than the input");
  return {std::make_unique<TopK>(query, machine)};
}

}  // namespace ngd::kernels::fallback
