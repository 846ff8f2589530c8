// SPDX-License-Identifier: Apache-2.0
// The staging buffers of this rank. A staging buffer is shared memory for one chunk of an operand
// that is in private memory. Only this rank copies its operands to its buffers.
//
// Every staged chunk has a number, its ticket. Tickets count the staged chunks of all collectives
// of a group; the chunk with ticket t is in buffer t % kBuffers. (The ring algorithm has no
// tickets. It waits until all buffers are free.) A buffer may be filled again when it is free:
//   - In an exchange (exchange.cpp), the peers only read the buffer. Each peer reports in
//     Slot::taken how many chunks it has read. The buffer is free when all peers have reported that
//     they have read its chunk. This condition (a Need) is the guard of the buffer. The collective
//     may be complete on this rank before the guard is met.
//   - In flat.cpp and nodes.cpp, the peers read the buffer and then write results to it. The buffer
//     is free when this rank has copied the results to its destination. Until then, this rank marks
//     the buffer as held (Staging::hold).
#pragma once

#include "comm/shm/group.hpp"

namespace ngd::comm::shm {

inline constexpr std::uint64_t kBuffers = 2;
inline constexpr std::size_t kBufferBytes = kStagingBytes / kBuffers;

// Return the staging buffer of a ticket (a staged chunk), in the segment of the rank that fills the
// buffer.
inline std::byte* buffer_of(const Segment& segment, std::uint64_t ticket) noexcept {
  return segment.staging() + ticket % kBuffers * kBufferBytes;
}

class Staging {
 public:
  // Reserve `tickets` consecutive tickets (numbers of staged chunks), and return the first one.
  std::uint64_t reserve(std::uint64_t tickets) noexcept {
    const std::uint64_t first = next_;
    next_ += tickets;
    return first;
  }
  // Return true if buffer ticket % kBuffers is free: the chunk with this ticket may fill it.
  bool is_free(Group& group, std::uint64_t ticket) {
    return !is_held_[ticket % kBuffers] && group.met(guard(ticket));
  }
  // Return the lowest index of a buffer that is in use, or kBuffers if all buffers are free. The
  // caller can then wait until the condition guard(index) is met: the peers do not need the buffer
  // any more.
  std::uint64_t first_busy(Group& group) {
    std::uint64_t buffer = 0;
    while (buffer < kBuffers && is_free(group, buffer)) ++buffer;
    return buffer;
  }
  // hold() marks the buffer of a ticket (a staged chunk) as in use, until give_back() is called.
  void hold(std::uint64_t ticket) noexcept { is_held_[ticket % kBuffers] = true; }
  void give_back(std::uint64_t ticket) noexcept { is_held_[ticket % kBuffers] = false; }
  // Keep the buffer of a ticket (a staged chunk) in use until each rank has taken at least `chunks`
  // chunks of collective number `sequence`, as it reports in Slot::taken.
  void guard_until_taken(Group& group, std::uint64_t ticket, std::uint64_t sequence,
                         std::uint64_t chunks) {
    guard(ticket) = group.all(Need::Flag::Taken, sequence, chunks);
  }
  // Return the condition (a Need) that is met when no peer needs the buffer of a ticket (a staged
  // chunk) any more. hold() and give_back() do not change the condition.
  Need& guard(std::uint64_t ticket) noexcept { return guards_[ticket % kBuffers]; }

 private:
  std::uint64_t next_ = 0;
  Need guards_[kBuffers];
  bool is_held_[kBuffers] = {};
};

}  // namespace ngd::comm::shm
