// SPDX-License-Identifier: Apache-2.0
// Integer arithmetic on sizes.
#pragma once

#include <type_traits>

namespace ngd {

// Return value / unit, rounded up: the number of units that contain `value` elements. value >= 0,
// unit > 0.
template <class T>
constexpr T divide_up(T value, std::type_identity_t<T> unit) noexcept {
  return (value + unit - 1) / unit;
}

// Return the smallest multiple of `unit` that is not less than `value`.
template <class T>
constexpr T round_up(T value, std::type_identity_t<T> unit) noexcept {
  return divide_up(value, unit) * unit;
}

}  // namespace ngd
