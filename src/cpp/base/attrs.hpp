// SPDX-License-Identifier: Apache-2.0
// The attributes of an instruction: a few named values. A kernel reads them once, when it is
// constructed.
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
  // The copy constructor copies the value that each std::variant contains, and makes a new variant
  // from the copy. It does not copy the variants themselves, because libstdc++ 12 has a bug: if
  // memory runs out while a variant is copied, the library destroys a string or vector that was
  // never constructed.
  Attrs(const Attrs& other) {
    for (const auto& [name, attr] : other.values_)
      std::visit([&, &key = name](const auto& value) { set(key, value); }, attr);
  }
  Attrs& operator=(const Attrs& other) { return *this = Attrs(other); }
  ~Attrs() = default;

  void set(const std::string& name, Attr value) { values_[name] = std::move(value); }
  bool has(const std::string& name) const { return values_.contains(name); }
  // The next functions return the value of an attribute. They throw Internal if the attribute is
  // absent or has another type. The second integer() returns `fallback` if it is absent.
  std::int64_t integer(const std::string& name) const;
  std::int64_t integer(const std::string& name, std::int64_t fallback) const;
  double number(const std::string& name) const;  // also accepts an integer up to 2^53
  const std::string& text(const std::string& name) const;
  const std::vector<std::int64_t>& integers(const std::string& name) const;
  // numbers() returns an attribute that is a list of doubles, and texts() one that is a list of
  // strings. Any empty list is stored as a list of integers, so both functions accept an empty list
  // of integers. numbers() also accepts other integers, up to 2^53.
  std::vector<double> numbers(const std::string& name) const;
  std::vector<std::string> texts(const std::string& name) const;
  const std::map<std::string, Attr>& all() const noexcept { return values_; }

 private:
  std::map<std::string, Attr> values_;
};

}  // namespace ngd
