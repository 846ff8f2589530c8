// SPDX-License-Identifier: Apache-2.0
// Numbers from text, whatever the process's locale: strtod, stod and streams ask it for the decimal
// point, and any library may have set it.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>

namespace ngd {

// All of the text as a number of this type; nothing where it is none, or none that fits.
template <class T>
std::optional<T> parse_number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace ngd
