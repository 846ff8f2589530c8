// SPDX-License-Identifier: Apache-2.0
#include "runtime/finite.hpp"

#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>
#include <variant>

namespace ngd::runtime {

namespace {

// Return which faults (NaN, infinity) an array of floats has, from their bits. `exponent` has the
// bits of an exponent of all ones, `all_but_sign` all bits except the sign. A float with an
// exponent of all ones is an infinity if its fraction is 0, and a NaN otherwise. So the bits
// without the sign, read as an integer, are equal to `exponent` for an infinity, and greater for a
// NaN.
template <class Bits>
Faults find_faults(const void* data, std::size_t count, Bits exponent, Bits all_but_sign) noexcept {
  const auto* bits = static_cast<const Bits*>(data);
  Faults faults;
  for (std::size_t i = 0; i < count; ++i) {
    const Bits magnitude = bits[i] & all_but_sign;
    faults.nan |= magnitude > exponent;
    faults.infinite |= magnitude == exponent;
  }
  return faults;
}

}  // namespace

Faults faults_of(const TensorType& type, const void* data) noexcept {
  const auto count = static_cast<std::size_t>(type.count());
  switch (type.dtype) {
    case DType::F16:
      return find_faults<std::uint16_t>(data, count, 0x7c00, 0x7fff);
    case DType::BF16:
      return find_faults<std::uint16_t>(data, count, 0x7f80, 0x7fff);
    case DType::F32:
      return find_faults<std::uint32_t>(data, count, 0x7f800000, 0x7fffffff);
    case DType::F64:
      return find_faults<std::uint64_t>(data, count, 0x7ff0000000000000, 0x7fffffffffffffff);
    default:
      return {};
  }
}

Faults faults_of(const Attrs& attrs) {
  Faults faults;
  const auto look_at = [&](const auto& value) {
    using Value = std::decay_t<decltype(value)>;
    if constexpr (std::is_same_v<Value, double>) {
      faults.nan |= std::isnan(value);
      faults.infinite |= std::isinf(value);
    } else if constexpr (std::is_same_v<Value, std::string>) {
      faults.nan |= value.find("#nan") != std::string::npos;
      for (const char* immediate : {"#inf", "#-inf"})
        faults.infinite |= value.find(immediate) != std::string::npos;
    }
  };
  for (const auto& [name, attr] : attrs.all()) std::visit(look_at, attr);
  return faults;
}

}  // namespace ngd::runtime
