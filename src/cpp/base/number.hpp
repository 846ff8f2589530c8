// SPDX-License-Identifier: Apache-2.0
// Numbers from text, independent of the locale. strtod, stod and streams take the decimal point
// from the locale of the process, which any library may have set.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>

namespace ngd {

// Return the number of type T that the whole text represents. Return nothing if the text is not a
// number, or if T cannot represent the number.
template <class T>
std::optional<T> parse_number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace ngd
