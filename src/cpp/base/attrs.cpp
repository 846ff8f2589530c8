// SPDX-License-Identifier: Apache-2.0
#include "base/attrs.hpp"

#include "base/error.hpp"

namespace ngd {

namespace {

template <class T>
const T& get(const std::map<std::string, Attr>& values, const std::string& name) {
  const auto found = values.find(name);
  check(found != values.end(), "an instruction lacks its attribute ", name);
  const T* value = std::get_if<T>(&found->second);
  check(value != nullptr, "attribute ", name, " has another type than its kernel expects");
  return *value;
}

}  // namespace

std::int64_t Attrs::integer(const std::string& name) const {
  return get<std::int64_t>(values_, name);
}
std::int64_t Attrs::integer(const std::string& name, std::int64_t fallback) const {
  return has(name) ? integer(name) : fallback;
}
double Attrs::number(const std::string& name) const { return get<double>(values_, name); }
const std::string& Attrs::text(const std::string& name) const {
  return get<std::string>(values_, name);
}
const std::vector<std::int64_t>& Attrs::integers(const std::string& name) const {
  return get<std::vector<std::int64_t>>(values_, name);
}

}  // namespace ngd
