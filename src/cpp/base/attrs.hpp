// SPDX-License-Identifier: Apache-2.0
// The attributes of an instruction: few, named, read once when a kernel is constructed.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace ngd {

using Attr = std::variant<std::int64_t, double, std::string, std::vector<std::int64_t>,
                          std::vector<double>, std::vector<std::string>>;

class Attrs {
 public:
  Attrs() = default;
  Attrs(Attrs&&) noexcept = default;
  Attrs& operator=(Attrs&&) noexcept = default;
  // One by one: where there is no memory for a copy, libstdc++ 12 destroys a variant of texts and
  // lists that was never made.
  Attrs(const Attrs& other) {
    for (const auto& [name, attr] : other.values_)
      std::visit([&, &key = name](const auto& value) { set(key, value); }, attr);
  }
  Attrs& operator=(const Attrs& other) { return *this = Attrs(other); }
  ~Attrs() = default;

  void set(const std::string& name, Attr value) { values_[name] = std::move(value); }
  bool has(const std::string& name) const { return values_.contains(name); }
  std::int64_t integer(const std::string& name) const;  // throws Internal if absent
  std::int64_t integer(const std::string& name, std::int64_t fallback) const;
  double number(const std::string& name) const;  // an integer too, where a double holds it
  const std::string& text(const std::string& name) const;
  const std::vector<std::int64_t>& integers(const std::string& name) const;
  // A list without elements is one of integers.
  std::vector<double> numbers(const std::string& name) const;
  std::vector<std::string> texts(const std::string& name) const;
  const std::map<std::string, Attr>& all() const noexcept { return values_; }

 private:
  std::map<std::string, Attr> values_;
};

}  // namespace ngd
