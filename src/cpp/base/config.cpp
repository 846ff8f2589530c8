// SPDX-License-Identifier: Apache-2.0
#include "base/config.hpp"

#include <charconv>
#include <cstdlib>
#include <system_error>

#include "base/error.hpp"
#include "base/number.hpp"

namespace ngd::config {

std::string text(const char* name, const char* fallback) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? fallback : value;
}

double number(const char* name, double fallback) {
  const std::string value = text(name, "");
  if (value.empty()) return fallback;
  const std::optional<double> parsed = parse_number<double>(value);
  if (!parsed || !(*parsed >= 0))
    fail(ErrorKind::Init, name, ": expected a number >= 0; got '", value, "'");
  return *parsed;
}

int whole_number(const char* name, int fallback, int min_value, int max_value,
                 const char* alternatives) {
  const std::string value = text(name, "");
  if (value.empty()) return fallback;
  int parsed = 0;
  const char* end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, parsed);
  if (error != std::errc() || stop != end || parsed < min_value || parsed > max_value)
    fail(ErrorKind::Init, name, ": expected ", alternatives, "a whole number from ", min_value,
         " to ", max_value, "; got '", value, "'");
  return parsed;
}

}  // namespace ngd::config
