// SPDX-License-Identifier: Apache-2.0
#include "kernels/kernel.hpp"

#include <type_traits>

namespace ngd::kernels {

namespace {

// Append the bytes of a number to a key.
template <class Number>
void append(std::string& key, Number number) {
  key.append(reinterpret_cast<const char*>(&number), sizeof number);
}

// Append the length of a text, and then the text. The length makes keys of different texts differ.
void append_sized(std::string& key, std::string_view text) {
  append(key, text.size());
  key += text;
}

// Append the length of a list, and then its numbers or texts.
template <class T>
void append_sized(std::string& key, const std::vector<T>& list) {
  append(key, list.size());
  for (const T& value : list) {
    if constexpr (std::is_arithmetic_v<T>)
      append(key, value);
    else
      append_sized(key, std::string_view(value));
  }
}

}  // namespace

std::string KernelQuery::key() const {
  std::string key;
  append_sized(key, op);
  for (const auto* operands : {&inputs, &outputs}) {
    append(key, operands->size());
    for (const TensorType& type : *operands) {
      append(key, type.dtype);
      append_sized(key, type.shape);
    }
  }
  for (const auto& [name, attr] : attrs.all()) {
    append_sized(key, name);
    append(key, attr.index());
    std::visit(
        [&](const auto& value) {
          if constexpr (std::is_arithmetic_v<std::decay_t<decltype(value)>>)
            append(key, value);
          else
            append_sized(key, value);
        },
        attr);
  }
  return key;
}

Found find(KernelTable table, const KernelQuery& query, const Machine& machine) {
  std::string refusals;
  for (const KernelRow& row : table) {
    if (row.op != query.op) continue;
    Offer offer = row.offer(query, machine);
    if (offer.kernel != nullptr) return {&row, std::move(offer)};
    if (offer.refusal.empty()) continue;
    if (!refusals.empty()) refusals += "; ";
    refusals += std::string(row.implementation) + ": " + offer.refusal;
  }
  if (refusals.empty()) refusals = "no kernel is called " + std::string(query.op);
  return {nullptr, Offer::refuse(std::move(refusals))};
}

}  // namespace ngd::kernels
