// SPDX-License-Identifier: Apache-2.0
// The canonical summation tree, one element at a time. All reductions are compared with it.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <memory>
#include <random>
#include <type_traits>
#include <vector>

#include "base/dtype.hpp"
#include "base/reduce.hpp"

namespace ngd::reference {

using Bytes = std::vector<std::byte>;

inline constexpr std::array<DType, kDTypeCount> kAllTypes{
    DType::Bool, DType::I8,  DType::I16, DType::I32,  DType::I64, DType::U8, DType::U16,
    DType::U32,  DType::U64, DType::F16, DType::BF16, DType::F32, DType::F64};

// `n` arrays of `count` elements: floats in (-2, 2), integers of all bits, bools.
inline std::vector<Bytes> random_inputs(DType dtype, int n, std::size_t count, unsigned seed) {
  std::mt19937_64 random(seed);
  std::vector<Bytes> inputs;
  for (int r = 0; r < n; ++r) {
    Bytes bytes(count * size_of(dtype));
    visit_dtype(dtype, [&]<class T>() {
      for (std::size_t i = 0; i < count; ++i) {
        const std::uint64_t bits = random();
        T value;
        if constexpr (std::is_same_v<T, bool>) {
          value = bits % 2 == 1;
        } else if constexpr (std::is_integral_v<T>) {
          value = static_cast<T>(bits);
        } else {
          const double real = static_cast<double>(bits >> 11) * 0x1p-51 - 2.0;
          if constexpr (std::is_floating_point_v<T>)
            value = static_cast<T>(real);
          else
            value = T(static_cast<float>(real));
        }
        std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
      }
    });
    inputs.push_back(std::move(bytes));
  }
  return inputs;
}

template <class T>
T combine_two(Combine combine, T a, T b) {
  if constexpr (std::is_same_v<T, bool>) {
    return combine == Combine::Max ? a || b : a && b;
  } else if constexpr (std::is_integral_v<T>) {
    const auto x = static_cast<std::uint64_t>(a), y = static_cast<std::uint64_t>(b);
    switch (combine) {
      case Combine::Sum:
        return static_cast<T>(x + y);
      case Combine::Prod:
        return static_cast<T>(x * y);
      case Combine::Min:
        return std::min(a, b);
      case Combine::Max:
        break;
    }
    return std::max(a, b);
  } else {
    if (combine == Combine::Sum) return a + b;
    if (combine == Combine::Prod) return a * b;
    if (std::isnan(a)) return a;
    if (std::isnan(b)) return b;
    return combine == Combine::Min ? std::min(b, a) : std::max(b, a);
  }
}

template <class T>
T tree_of(Combine combine, const T* values, int n) {
  if (n == 1) return values[0];
  int left = 1;
  while (left * 2 < n) left *= 2;
  const T a = tree_of(combine, values, left), b = tree_of(combine, values + left, n - left);
  return combine_two(combine, a, b);
}

inline Bytes tree(Combine combine, DType dtype, const std::vector<Bytes>& inputs, std::size_t count,
                  double divisor) {
  Bytes result(count * size_of(dtype));
  visit_dtype(dtype, [&]<class T>() {
    constexpr bool kHalf = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;
    using Sum = std::conditional_t<kHalf, float, T>;
    const int n = static_cast<int>(inputs.size());
    const auto values = std::make_unique<Sum[]>(inputs.size());
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t r = 0; r < inputs.size(); ++r) {
        T value;
        std::memcpy(&value, inputs[r].data() + i * sizeof(T), sizeof(T));
        values[r] = static_cast<Sum>(value);
      }
      Sum sum = tree_of(combine, values.get(), n);
      if constexpr (std::is_floating_point_v<Sum>)
        if (divisor != 1.0) sum = sum / static_cast<Sum>(divisor);
      const T rounded = static_cast<T>(sum);
      std::memcpy(result.data() + i * sizeof(T), &rounded, sizeof(T));
    }
  });
  return result;
}

}  // namespace ngd::reference
