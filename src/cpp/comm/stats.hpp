// SPDX-License-Identifier: Apache-2.0
// Statistics of a communicator: the number, bytes and times of the calls at each call site.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "comm/communicator.hpp"

namespace ngd::comm {

// Return the bytes of a rank's source or destination, whichever is larger. Statistics report them
// as the bytes of a call.
std::uint64_t larger_side_bytes(const Collective& collective, int rank, int size) noexcept;

class Statistics {
 public:
  using Entry = std::uint32_t;

  explicit Statistics(int ranks) : ranks_(ranks) {}

  // Return the entry that counts the calls with this kind, reduction and call site (a string). If
  // an earlier call had its string at the same address, cache_ finds the entry in a few
  // nanoseconds. The strings are compared too, because the caller may have freed the earlier
  // string, and another string may be at its address now.
  Entry entry_of(const Collective& collective) {
    const char* site = collective.site == nullptr ? "" : collective.site;
    CachedEntry& cached = cache_[cache_index(collective, site)];
    if (cached.site == site && cached.entry < entries_.size()) [[likely]] {
      const CallStats& stats = entries_[cached.entry];
      if (stats.kind == collective.kind && stats.op == collective.op && stats.site == site)
        return cached.entry;
    }
    cached = {site, look_up(collective, site)};
    return cached.entry;
  }

  // Count a complete call: its bytes, its time, and the rank that arrived last (-1: not known).
  void add(Entry entry, std::uint64_t bytes, std::uint64_t ns, int last) noexcept {
    CallStats& stats = entries_[entry];
    ++stats.calls;
    stats.bytes += bytes;
    ns_[entry].all += ns;
    if (last >= 0) ++stats.last[static_cast<std::size_t>(last)];
  }
  // Add the part of a call's time that was spent inside wait().
  void add_waited(Entry entry, std::uint64_t ns) noexcept { ns_[entry].waited += ns; }

  // Return a copy of the statistics, one CallStats per entry.
  std::vector<CallStats> report() const;

 private:
  static constexpr std::size_t kCacheSize = 256;
  // if the table is full, calls are counted without their site
  static constexpr std::size_t kMostEntries = 4096;

  // Return an index in cache_. It depends on the kind and reduction of `collective`, and on the
  // address of `site`.
  static std::size_t cache_index(const Collective& collective, const char* site) noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(site);
    return (address >> 4 ^ address >> 12 ^ static_cast<std::size_t>(collective.kind) << 3 ^
            static_cast<std::size_t>(collective.op)) %
           kCacheSize;
  }
  // Find the entry by the text of the call site, or add it. If the table is full, a new
  // call site gets the entry without a call site.
  Entry look_up(const Collective& collective, const char* site);

  struct CachedEntry {
    const char* site = nullptr;
    Entry entry = 0;
  };
  struct Nanoseconds {
    std::uint64_t all = 0, waited = 0;
  };
  int ranks_;
  std::array<CachedEntry, kCacheSize> cache_{};
  std::vector<CallStats> entries_;
  std::vector<Nanoseconds> ns_;
  std::unordered_map<std::string, Entry> by_name_;
};

}  // namespace ngd::comm
