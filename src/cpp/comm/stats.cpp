// SPDX-License-Identifier: Apache-2.0
#include "comm/stats.hpp"

#include <algorithm>

namespace ngd::comm {

std::uint64_t larger_side_bytes(const Collective& collective, int rank, int size) noexcept {
  return std::max(source_elements(collective, rank, size),
                  destination_elements(collective, rank, size)) *
         size_of(collective.dtype);
}

Statistics::Entry Statistics::look_up(const Collective& collective, const char* site) {
  const std::string name = {static_cast<char>(collective.kind), static_cast<char>(collective.op)};
  if (const auto existing = by_name_.find(name + site); existing != by_name_.end())
    return existing->second;
  const std::string text = entries_.size() < kMostEntries ? site : "";
  if (const auto existing = by_name_.find(name + text); existing != by_name_.end())
    return existing->second;
  CallStats stats;
  stats.kind = collective.kind;
  stats.op = collective.op;
  stats.site = text;
  stats.last.resize(static_cast<std::size_t>(ranks_));
  const auto entry = static_cast<Entry>(entries_.size());
  ns_.resize(entries_.size() + 1);
  entries_.push_back(std::move(stats));
  try {
    by_name_.emplace(name + text, entry);
  } catch (...) {  // no memory for the name: remove the new entry
    entries_.pop_back();
    throw;
  }
  return entry;
}

std::vector<CallStats> Statistics::report() const {
  std::vector<CallStats> all = entries_;
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i].seconds = static_cast<double>(ns_[i].all) * 1e-9;
    all[i].waited_seconds = static_cast<double>(ns_[i].waited) * 1e-9;
  }
  return all;
}

}  // namespace ngd::comm
