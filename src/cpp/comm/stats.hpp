// SPDX-License-Identifier: Apache-2.0
// Counts what every call site of a communicator costs.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "comm/communicator.hpp"

namespace ngd::comm {

// Of the call, what a rank of `size` moves: its source or its destination, the larger.
std::uint64_t larger_side_bytes(const Collective& collective, int rank, int size) noexcept;

class Statistics {
 public:
  using Entry = std::uint32_t;

  explicit Statistics(int ranks) : ranks_(ranks) {}

  // Where calls of that kind, reduction and call site are counted. A few nanoseconds for a site
  // whose text lies where it lay at an earlier call.
  Entry entry_of(const Collective& collective) {
    const char* site = collective.site == nullptr ? "" : collective.site;
    Known& known = known_[place_of(collective, site)];
    if (known.site == site && known.entry < entries_.size()) [[likely]] {
      const CallStats& stats = entries_[known.entry];
      if (stats.kind == collective.kind && stats.op == collective.op && stats.site == site)
        return known.entry;
    }
    known = {site, look_up(collective, site)};
    return known.entry;
  }

  // A call is over: how much it moved, how long it took, and who came last (-1: not known).
  void add(Entry entry, std::uint64_t bytes, std::uint64_t ns, int last) noexcept {
    CallStats& stats = entries_[entry];
    ++stats.calls;
    stats.bytes += bytes;
    ns_[entry].all += ns;
    if (last >= 0) ++stats.last[static_cast<std::size_t>(last)];
  }
  // Of the time of a call, so much was spent inside wait().
  void add_waited(Entry entry, std::uint64_t ns) noexcept { ns_[entry].waited += ns; }

  std::vector<CallStats> report() const;

 private:
  static constexpr std::size_t kKnown = 256;
  static constexpr std::size_t kMostEntries = 4096;  // then calls are counted without their site

  static std::size_t place_of(const Collective& collective, const char* site) noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(site);
    return (address >> 4 ^ address >> 12 ^ static_cast<std::size_t>(collective.kind) << 3 ^
            static_cast<std::size_t>(collective.op)) %
           kKnown;
  }
  Entry look_up(const Collective& collective, const char* site);

  struct Known {
    const char* site = nullptr;
    Entry entry = 0;
  };
  struct Nanoseconds {
    std::uint64_t all = 0, waited = 0;
  };
  int ranks_;
  std::array<Known, kKnown> known_{};
  std::vector<CallStats> entries_;
  std::vector<Nanoseconds> ns_;
  std::unordered_map<std::string, Entry> by_name_;
};

}  // namespace ngd::comm
