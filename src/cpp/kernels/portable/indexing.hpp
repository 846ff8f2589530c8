// SPDX-License-Identifier: Apache-2.0
// Index operands, integer tensors of i32 or i64, and the sums of what they choose.
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/error.hpp"
#include "base/shape.hpp"

namespace ngd::kernels {

inline bool is_index(DType dtype) { return dtype == DType::I32 || dtype == DType::I64; }

inline std::int64_t index_at(DType dtype, const void* indices, std::int64_t i) {
  return dtype == DType::I32 ? static_cast<const std::int32_t*>(indices)[i]
                             : static_cast<const std::int64_t*>(indices)[i];
}

// Throws InvalidArgument that names the first index outside [lowest, length).
inline void check_indices(const char* where, DType dtype, const void* indices, std::int64_t count,
                          std::int64_t lowest, std::int64_t length) {
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t index = index_at(dtype, indices, i);
    if (index < lowest || index >= length) [[unlikely]]
      fail(ErrorKind::InvalidArgument, where, ": index ", index, " (element ", i,
           " of the indices) is out of range for an axis of length ", length);
  }
}

// Two-byte floats are summed in float32 scratch and rounded once.
template <class T>
using SumType =
    std::conditional_t<std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>, float, T>;

template <class T>
T wrapping_sum(T a, T b) {
  if constexpr (std::is_same_v<T, bool>)
    return a || b;
  else if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  else
    return a + b;
}

}  // namespace ngd::kernels
