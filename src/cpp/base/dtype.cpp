// SPDX-License-Identifier: Apache-2.0
#include "base/dtype.hpp"

#include <stdexcept>
#include <string>

namespace ngd {

namespace {

struct Row {
  std::string_view name, short_name;
  std::size_t size;
};

// The names of the dtypes, and the bytes per element, in the order of the enumerators of DType.
constexpr Row kRows[kDTypeCount] = {
    {"bool", "bool", 1},   {"int8", "i8", 1},     {"int16", "i16", 2},     {"int32", "i32", 4},
    {"int64", "i64", 8},   {"uint8", "u8", 1},    {"uint16", "u16", 2},    {"uint32", "u32", 4},
    {"uint64", "u64", 8},  {"float16", "f16", 2}, {"bfloat16", "bf16", 2}, {"float32", "f32", 4},
    {"float64", "f64", 8},
};

}  // namespace

std::size_t size_of(DType dtype) noexcept { return kRows[static_cast<int>(dtype)].size; }
std::string_view name_of(DType dtype) noexcept { return kRows[static_cast<int>(dtype)].name; }
std::string_view short_name_of(DType dtype) noexcept {
  return kRows[static_cast<int>(dtype)].short_name;
}

DType dtype_named(std::string_view name) {
  for (int i = 0; i < kDTypeCount; ++i)
    if (kRows[i].name == name || kRows[i].short_name == name) return static_cast<DType>(i);
  throw std::invalid_argument("no dtype is called " + std::string(name));
}

}  // namespace ngd
