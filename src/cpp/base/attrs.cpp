// SPDX-License-Identifier: Apache-2.0
#include "base/attrs.hpp"

#include "base/error.hpp"

namespace ngd {

namespace {

const Attr& find(const std::map<std::string, Attr>& values, const std::string& name) {
  const auto entry = values.find(name);
  check(entry != values.end(), "an instruction does not have the attribute ", name);
  return entry->second;
}

// Return the value of an attribute. Throws Internal if it is absent or has another type than T.
template <class T>
const T& get(const std::map<std::string, Attr>& values, const std::string& name) {
  const T* value = std::get_if<T>(&find(values, name));
  check(value != nullptr, "attribute ", name, " has another type than its kernel expects");
  return *value;
}

// Convert the value of attribute `name` exactly. Throws Internal if its magnitude is above 2^53.
double to_double(std::int64_t integer, const std::string& name) {
  // 2^53. A double represents exactly every integer whose magnitude is at most this number.
  constexpr std::int64_t kMaxExact = std::int64_t{1} << 53;
  check(-kMaxExact <= integer && integer <= kMaxExact, "attribute ", name,
        " is too large for a double");
  return static_cast<double>(integer);
}

}  // namespace

std::int64_t Attrs::integer(const std::string& name) const {
  return get<std::int64_t>(values_, name);
}
std::int64_t Attrs::integer(const std::string& name, std::int64_t fallback) const {
  return has(name) ? integer(name) : fallback;
}
double Attrs::number(const std::string& name) const {
  const auto* integer = std::get_if<std::int64_t>(&find(values_, name));
  return integer != nullptr ? to_double(*integer, name) : get<double>(values_, name);
}
const std::string& Attrs::text(const std::string& name) const {
  return get<std::string>(values_, name);
}
const std::vector<std::int64_t>& Attrs::integers(const std::string& name) const {
  return get<std::vector<std::int64_t>>(values_, name);
}
std::vector<double> Attrs::numbers(const std::string& name) const {
  const auto* integers = std::get_if<std::vector<std::int64_t>>(&find(values_, name));
  if (integers == nullptr) return get<std::vector<double>>(values_, name);
  std::vector<double> result;
  for (const std::int64_t n : *integers) result.push_back(to_double(n, name));
  return result;
}
std::vector<std::string> Attrs::texts(const std::string& name) const {
  const auto* integers = std::get_if<std::vector<std::int64_t>>(&find(values_, name));
  if (integers != nullptr && integers->empty()) return {};
  return get<std::vector<std::string>>(values_, name);
}

}  // namespace ngd
