// SPDX-License-Identifier: Apache-2.0
// Functions that run kernels of the CPU's table on vectors, with guards around outputs and scratch.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "kernels/kernel.hpp"

namespace ngd::kernels::test {

// A tensor of any dtype in aligned bytes.
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(TensorType type) : type_(std::move(type)), lines_(type_.bytes() / 64 + 1) {}
  Tensor(DType dtype, Shape shape) : Tensor(TensorType{dtype, std::move(shape)}) {}
  template <class T>
  Tensor(DType dtype, Shape shape, const std::vector<T>& values) : Tensor(dtype, std::move(shape)) {
    EXPECT_EQ(static_cast<std::int64_t>(values.size()), type_.count());
    for (std::size_t i = 0; i < values.size(); ++i) set(static_cast<std::int64_t>(i), values[i]);
  }

  const TensorType& type() const { return type_; }
  std::int64_t count() const { return type_.count(); }
  void* data() { return lines_.data(); }
  const void* data() const { return lines_.data(); }

  // The element as a double (exact except for 64-bit integers), or as an integer.
  double at(std::int64_t i) const {
    return visit_dtype(type_.dtype, [&]<class T>() -> double {
      const T value = static_cast<const T*>(data())[i];
      if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>)
        return static_cast<float>(value);
      else
        return static_cast<double>(value);
    });
  }
  std::int64_t integer(std::int64_t i) const {
    return visit_dtype(type_.dtype, [&]<class T>() -> std::int64_t {
      if constexpr (std::is_integral_v<T>)
        return static_cast<std::int64_t>(static_cast<const T*>(data())[i]);
      else
        return 0;
    });
  }
  std::vector<double> doubles() const {
    std::vector<double> values;
    for (std::int64_t i = 0; i < count(); ++i) values.push_back(at(i));
    return values;
  }
  template <class V>
  void set(std::int64_t i, V value) {
    visit_dtype(type_.dtype, [&]<class T>() {
      if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>)
        static_cast<T*>(data())[i] = T(static_cast<float>(value));
      else
        static_cast<T*>(data())[i] = static_cast<T>(value);
    });
  }
  bool operator==(const Tensor& other) const {
    return type_ == other.type_ && std::memcmp(data(), other.data(), type_.bytes()) == 0;
  }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  TensorType type_;
  std::vector<Line> lines_;
};

inline const std::vector<DType>& all_dtypes() {
  static const std::vector<DType> all = [] {
    std::vector<DType> dtypes;
    for (int d = 0; d < kDTypeCount; ++d) dtypes.push_back(static_cast<DType>(d));
    return dtypes;
  }();
  return all;
}

// Values that every dtype represents exactly: small integers, with both signs if the dtype is
// signed.
inline Tensor random_tensor(DType dtype, Shape shape, unsigned seed, int low = -8, int high = 8) {
  std::mt19937 generator(seed);
  Tensor tensor(dtype, std::move(shape));
  const bool is_unsigned = dtype == DType::Bool || (is_integer(dtype) && !is_signed_integer(dtype));
  std::uniform_int_distribution<int> draw(is_unsigned ? 0 : low, dtype == DType::Bool ? 1 : high);
  for (std::int64_t i = 0; i < tensor.count(); ++i) tensor.set(i, draw(generator));
  return tensor;
}

inline Tensor random_floats(DType dtype, Shape shape, unsigned seed, double low = -2,
                            double high = 2) {
  std::mt19937 generator(seed);
  Tensor tensor(dtype, std::move(shape));
  std::uniform_real_distribution<double> draw(low, high);
  for (std::int64_t i = 0; i < tensor.count(); ++i) tensor.set(i, draw(generator));
  return tensor;
}

inline KernelQuery query_of(std::string_view op, const std::vector<Tensor>& inputs,
                            const std::vector<TensorType>& outputs, Attrs attrs) {
  KernelQuery query{op, {}, outputs, std::move(attrs)};
  for (const Tensor& input : inputs) query.inputs.push_back(input.type());
  return query;
}

// Return the first kernel that a row of an implementation ("": of any) offers on this machine, or
// the refusal of the last one.
inline Offer offer_of(const KernelQuery& query, std::string_view implementation = "") {
  Offer offer = Offer::refuse("no such row");
  for (const KernelRow& row : cpu_table()) {
    if (row.op != query.op) continue;
    if (!implementation.empty() && row.implementation != implementation) continue;
    offer = row.offer(query, this_machine());
    if (offer.kernel != nullptr) break;
  }
  return offer;
}

// Return the reason why no kernel computes a query; the test fails if one does.
inline std::string refusal_of(const KernelQuery& query) {
  const Offer offer = offer_of(query);
  EXPECT_EQ(offer.kernel, nullptr);
  return offer.refusal;
}

// Return the implementations of an op, for INSTANTIATE_TEST_SUITE_P.
inline std::vector<const char*> implementations_of(std::string_view op) {
  std::vector<const char*> names;
  for (const KernelRow& row : cpu_table())
    if (row.op == op && std::find(names.begin(), names.end(), row.implementation) == names.end())
      names.push_back(row.implementation.data());
  return names;
}

// Run the kernel of an implementation ("": of any) into fresh outputs, or into the memory of inputs.
// Outputs that are `unread` are null, and are returned as zeros.
inline std::vector<Tensor> run(std::string_view op, std::vector<Tensor> inputs,
                               const std::vector<TensorType>& outputs, Attrs attrs,
                               std::string_view implementation = "",
                               const std::vector<InPlace>& in_place = {},
                               const std::vector<std::size_t>& unread = {}) {
  const KernelQuery query = query_of(op, inputs, outputs, std::move(attrs));
  const std::unique_ptr<Kernel> kernel = [&] {
    Offer offer = offer_of(query, implementation);
    if (offer.kernel == nullptr) throw std::runtime_error(offer.refusal);
    offer.kernel->prepare();
    return std::move(offer.kernel);
  }();
  const std::size_t scratch_bytes = kernel->scratch_bytes();
  const std::vector<InPlace> allowed = kernel->in_place();
  constexpr std::byte kGuard{0x5a};
  std::vector<Tensor> results(outputs.begin(), outputs.end());
  std::vector<const void*> in;
  std::vector<void*> out;
  for (Tensor& input : inputs) in.push_back(input.data());
  for (Tensor& result : results) {
    std::memset(result.data(), 0x5a, result.type().bytes());
    out.push_back(result.data());
  }
  const auto input_under = [&](const InPlace& pair) -> Tensor& {
    return inputs[static_cast<std::size_t>(pair.input)];
  };
  for (const InPlace& pair : in_place) {
    EXPECT_NE(std::find(allowed.begin(), allowed.end(), pair), allowed.end())
        << op << ": output " << pair.output << " in place of input " << pair.input;
    out[static_cast<std::size_t>(pair.output)] = input_under(pair).data();
  }
  for (const std::size_t k : unread) {
    out[k] = nullptr;
    results[k] = Tensor(outputs[k]);
  }
  std::vector<std::byte> scratch(scratch_bytes + 192, kGuard);
  auto* aligned = reinterpret_cast<std::byte*>(
      (reinterpret_cast<std::uintptr_t>(scratch.data()) + 63) / 64 * 64);
  const std::unique_ptr<device::Queue> queue = device::cpu().make_queue();
  const KernelArgs args{in.data(), out.data(), aligned, queue.get()};
  kernel->run(args);
  if (in_place.empty()) {
    const std::vector<Tensor> first = results;
    kernel->run(args);
    EXPECT_EQ(first, results) << op << " is not the same when run again";
  }
  for (std::byte* b = aligned + scratch_bytes; b < scratch.data() + scratch.size(); ++b)
    EXPECT_EQ(*b, kGuard) << op << " wrote beyond its scratch";
  for (const InPlace& pair : in_place) {
    Tensor& result = results[static_cast<std::size_t>(pair.output)];
    std::memcpy(result.data(), input_under(pair).data(), result.type().bytes());
  }
  return results;
}

inline Attrs attrs_of(std::initializer_list<std::pair<const char*, Attr>> list) {
  Attrs attrs;
  for (const auto& [name, value] : list) attrs.set(name, value);
  return attrs;
}

using Integers = std::vector<std::int64_t>;

}  // namespace ngd::kernels::test
