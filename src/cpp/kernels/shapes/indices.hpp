// SPDX-License-Identifier: Apache-2.0
// Code that kernels share: it reads and checks operands of indices (i32 or i64), and adds elements.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

#include "base/error.hpp"
#include "base/shape.hpp"
#include "kernels/kernel.hpp"

namespace ngd::kernels {

// Return true if an operand of indices may have this dtype.
inline bool is_index(DType dtype) { return dtype == DType::I32 || dtype == DType::I64; }

// Return element number i of an array of indices. `dtype` is I32 or I64. The index is not checked,
// and may be negative.
inline std::int64_t index_at(DType dtype, const void* indices, std::int64_t i) {
  return dtype == DType::I32 ? static_cast<const std::int32_t*>(indices)[i]
                             : static_cast<const std::int64_t*>(indices)[i];
}

// The check of indices into one axis. It has the range of valid indices, and the parts of the error
// message about an invalid index: the name of the public function that the user called, the axis,
// and the shape of the indices.
struct IndexCheck {
  std::string caller;   // the name of the public function
  std::string of_axis;  // " for axis N", if the call has one array of indices per axis
  DType dtype = DType::I64;
  Shape shape;  // of the indices
  std::int64_t lowest = 0, length = 1;

  // Describe the indices in operand number `input` of a kernel, which select from `extent`
  // elements. The attribute `caller` is the name of the public call for error messages; without it,
  // the name of the op is used. If the attribute `negative` is 0, or may_be_negative is false,
  // negative indices are errors. Otherwise, they count from the end.
  IndexCheck(const KernelQuery& query, std::size_t input, std::int64_t extent,
             bool may_be_negative = true)
      : caller(query.attrs.has("caller") ? query.attrs.text("caller") : std::string(query.op)),
        of_axis(query.attrs.has("axes") ? concat(" for axis ", query.attrs.integers("axes")[input])
                                        : std::string()),
        dtype(query.inputs[input].dtype),
        shape(query.inputs[input].shape),
        lowest(may_be_negative && query.attrs.integer("negative", 1) != 0 ? -extent : 0),
        length(extent) {}

  // Throw std::out_of_range for the first index outside [lowest, length).
  void check(const void* indices) const {
    std::int64_t count = 1;
    for (const std::int64_t extent : shape) count *= extent;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t index = index_at(dtype, indices, i);
      if (index < lowest || index >= length) [[unlikely]]
        refuse(index, i);
    }
  }

  // Throw std::out_of_range for an invalid index. `element` is its flat position in the array of
  // indices.
  [[noreturn]] void refuse(std::int64_t index, std::int64_t element) const;
};

// The type in which elements of T are summed. 16-bit floats are summed in float32 scratch memory,
// and rounded once.
template <class T>
using SumType =
    std::conditional_t<std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>, float, T>;

// Return a + b. Sums of integers wrap, and the sum of two bools is a || b.
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
