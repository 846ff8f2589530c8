// SPDX-License-Identifier: Apache-2.0
// My staging area, as its one writer sees it: a row of buffers that are used in turn.
//
// Every chunk that passes through gets a ticket, counted through over all collectives of a group;
// ticket t uses buffer t % kBuffers. A buffer may be filled again when nobody reads it any more.
// Where the peers only read it (exchange.cpp), they say so (Slot::taken), and the lane remembers
// whose word that takes; so a rank may complete a collective while they still read. Where they
// write their results back to it (flat.cpp), I hold it until I have taken them out.
#pragma once

#include "comm/shm/group.hpp"

namespace ngd::comm::shm {

inline constexpr std::uint64_t kBuffers = 2;
inline constexpr std::size_t kBufferBytes = kStagingBytes / kBuffers;

// Where a rank's chunk of that ticket lies.
inline std::byte* buffer_of(const Segment& segment, std::uint64_t ticket) noexcept {
  return segment.staging() + ticket % kBuffers * kBufferBytes;
}

class Lane {
 public:
  // Reserves tickets; returns the first.
  std::uint64_t reserve(std::uint64_t tickets) noexcept {
    const std::uint64_t first = next_;
    next_ += tickets;
    return first;
  }
  // Whether the buffer of a ticket may be filled.
  bool free(Group& group, std::uint64_t ticket) {
    return !held_[ticket % kBuffers] && group.met(guard(ticket));
  }
  // The first buffer that is not free, or kBuffers.
  std::uint64_t first_busy(Group& group) {
    std::uint64_t buffer = 0;
    while (buffer < kBuffers && free(group, buffer)) ++buffer;
    return buffer;
  }
  void hold(std::uint64_t ticket) noexcept { held_[ticket % kBuffers] = true; }
  void give_back(std::uint64_t ticket) noexcept { held_[ticket % kBuffers] = false; }
  // What the ticket's buffer now holds is read when all have taken `value` chunks of `sequence`.
  void fill(Group& group, std::uint64_t ticket, std::uint64_t sequence, std::uint64_t value) {
    guard(ticket) = group.all(Need::Flag::Taken, sequence, value);
  }
  Need& guard(std::uint64_t ticket) noexcept { return guards_[ticket % kBuffers]; }

 private:
  std::uint64_t next_ = 0;
  Need guards_[kBuffers];
  bool held_[kBuffers] = {};
};

}  // namespace ngd::comm::shm
