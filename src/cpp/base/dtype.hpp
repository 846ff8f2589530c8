// SPDX-License-Identifier: Apache-2.0
// The dtypes of tensors, with the names that NumPy and ml_dtypes give them.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ngd {

enum class DType : std::uint8_t { Bool, I8, I16, I32, I64, U8, U16, U32, U64, F16, BF16, F32, F64 };
inline constexpr int kDTypeCount = 13;

std::size_t size_of(DType dtype) noexcept;             // bytes of one element
std::string_view name_of(DType dtype) noexcept;        // "float32", as in NumPy and ml_dtypes
std::string_view short_name_of(DType dtype) noexcept;  // "f32", as in printed programs
// Return the dtype with a name such as "float32" or "f32". Throws std::invalid_argument for an
// unknown name.
DType dtype_named(std::string_view name);

// is_floating() includes the 16-bit floats, and is_half() returns true only for these: float16 and
// bfloat16. Bool is not an integer.
inline bool is_floating(DType d) noexcept { return d >= DType::F16; }
inline bool is_half(DType d) noexcept { return d == DType::F16 || d == DType::BF16; }
inline bool is_integer(DType d) noexcept { return d >= DType::I8 && d <= DType::U64; }
inline bool is_signed_integer(DType d) noexcept { return d >= DType::I8 && d <= DType::I64; }

// bfloat16: the upper half of a float32, rounded to nearest even. A NaN becomes a quiet NaN.
// The conversions are always inline, because *.simd.cpp files use them: a copy that is compiled for
// a higher SIMD level must not be visible to the linker.
struct BFloat16 {
  std::uint16_t bits;
  BFloat16() = default;
  [[gnu::always_inline]] explicit BFloat16(float value) noexcept {
    const auto u = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    const std::uint32_t quiet_nan = (u >> 16) | 0x0040u;
    bits = static_cast<std::uint16_t>(value != value ? quiet_nan : rounded);
  }
  [[gnu::always_inline]] explicit operator float() const noexcept {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
};

// IEEE 754 binary16, rounded to nearest even, with subnormals, infinities and NaN.
struct Float16 {
  std::uint16_t bits;
  Float16() = default;
  [[gnu::always_inline]] explicit Float16(float value) noexcept {
    const auto u = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = (u >> 16) & 0x8000u;
    const std::uint32_t magnitude = u & 0x7fffffffu;
    // Normal result: rebias the exponent by 127 - 15, and round 13 bits away, ties to even.
    const std::uint32_t normal =
        (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    // Subnormal result: after adding 0.5f, the low mantissa bits contain the value, rounded to a
    // multiple of 2^-24.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u;
    const std::uint32_t special =
        magnitude > 0x7f800000u ? 0x7e00u | ((magnitude >> 13) & 0x3ffu) : 0x7c00u;
    const std::uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
    bits = static_cast<std::uint16_t>(sign | (magnitude >= 0x47800000u ? special : finite));
  }
  [[gnu::always_inline]] explicit operator float() const noexcept {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
    const std::uint32_t exponent = (bits >> 10) & 0x1fu;
    const std::uint32_t mantissa = bits & 0x3ffu;
    // A subnormal is mantissa * 2^-24, which float32 represents exactly.
    const auto subnormal = std::bit_cast<std::uint32_t>(static_cast<float>(mantissa) * 0x1p-24f);
    const std::uint32_t normal = ((exponent + 112u) << 23) | (mantissa << 13);
    const std::uint32_t special = 0x7f800000u | (mantissa << 13);
    const std::uint32_t magnitude = exponent == 0 ? subnormal : exponent == 31 ? special : normal;
    return std::bit_cast<float>(sign | magnitude);
  }
};

// clang-format off

// The C++ type in which an element of a dtype is stored.
template <DType> struct StorageOf;
template <> struct StorageOf<DType::Bool> { using type = bool; };
template <> struct StorageOf<DType::I8> { using type = std::int8_t; };
template <> struct StorageOf<DType::I16> { using type = std::int16_t; };
template <> struct StorageOf<DType::I32> { using type = std::int32_t; };
template <> struct StorageOf<DType::I64> { using type = std::int64_t; };
template <> struct StorageOf<DType::U8> { using type = std::uint8_t; };
template <> struct StorageOf<DType::U16> { using type = std::uint16_t; };
template <> struct StorageOf<DType::U32> { using type = std::uint32_t; };
template <> struct StorageOf<DType::U64> { using type = std::uint64_t; };
template <> struct StorageOf<DType::F16> { using type = Float16; };
template <> struct StorageOf<DType::BF16> { using type = BFloat16; };
template <> struct StorageOf<DType::F32> { using type = float; };
template <> struct StorageOf<DType::F64> { using type = double; };
// clang-format on

// Call visitor.template operator()<T>() with the storage type T of a dtype that is known at run
// time.
template <class Visitor>
decltype(auto) visit_dtype(DType dtype, Visitor&& visitor) {
  switch (dtype) {
    case DType::Bool:
      return visitor.template operator()<bool>();
    case DType::I8:
      return visitor.template operator()<std::int8_t>();
    case DType::I16:
      return visitor.template operator()<std::int16_t>();
    case DType::I32:
      return visitor.template operator()<std::int32_t>();
    case DType::I64:
      return visitor.template operator()<std::int64_t>();
    case DType::U8:
      return visitor.template operator()<std::uint8_t>();
    case DType::U16:
      return visitor.template operator()<std::uint16_t>();
    case DType::U32:
      return visitor.template operator()<std::uint32_t>();
    case DType::U64:
      return visitor.template operator()<std::uint64_t>();
    case DType::F16:
      return visitor.template operator()<Float16>();
    case DType::BF16:
      return visitor.template operator()<BFloat16>();
    case DType::F32:
      return visitor.template operator()<float>();
    case DType::F64:
      break;
  }
  return visitor.template operator()<double>();
}

}  // namespace ngd
