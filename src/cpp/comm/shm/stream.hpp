// SPDX-License-Identifier: Apache-2.0
// Sends and receives. From each rank to each other one there is a stream of letters, which the
// receiver takes in the order in which they were posted; it stands outside of the group's common
// sequence. A stream lies in its sender's heap from the first send on; the sender's control block
// says where.
//
// A small payload lies in its letter: that send is over when the letter is posted. A source in the
// shared lane is read in place: over when the receiver says so. All others pass through the
// stream's two chunks in turn: over when the last of it stands there.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/shm/family.hpp"
#include "comm/shm/group.hpp"
#include "comm/stats.hpp"

namespace ngd::comm::shm {

inline constexpr std::uint64_t kLetters = 8;            // posted and not yet received
inline constexpr std::size_t kLetterBytes = 1 << 10;    // of payload
inline constexpr std::size_t kStreamChunk = 128 << 10;  // twice
// What tells the Work of a send or a receive from a place in the common sequence.
inline constexpr std::uint64_t kBetweenTwo = std::uint64_t{1} << 63;

struct Letter {
  std::uint64_t count;
  std::uint64_t source_offset;  // in the sender's segment, or kInline, or kPrivate
  std::int32_t tag;
  DType dtype;
  char site[kSiteBytes];
  alignas(kLine) std::byte payload[kLetterBytes];
};

struct Stream {
  // Written by the sender: letters posted; chunks, of all letters, that stand here or have stood.
  alignas(kLine) std::atomic<std::uint64_t> posted;
  std::atomic<std::uint64_t> filled;
  // Written by the receiver: letters that it has, chunks that it has.
  alignas(kLine) std::atomic<std::uint64_t> received;
  std::atomic<std::uint64_t> drained;
  Letter letters[kLetters];
  alignas(kLine) std::byte chunks[2][kStreamChunk];
};

// A send or a receive of mine that is not over.
struct Transfer {
  std::uint64_t work = 0;
  Kind kind = Kind::Send;
  int peer = 0;
  DType dtype = DType::U8;
  std::uint64_t count = 0;
  int tag = 0;
  const std::byte* source = nullptr;
  std::byte* destination = nullptr;
  char site[kSiteBytes] = {};
  std::uint64_t submitted_ns = 0;
  Statistics::Entry stats = 0;

  bool posted = false;       // a send: its letter is
  std::uint64_t letter = 0;  // its number in its stream
  std::uint64_t offset = kPrivate;
  std::size_t moved = 0;  // bytes that I have put into, or taken out of, chunks
  bool over = false;

  std::size_t bytes() const noexcept { return count * size_of(dtype); }
};

// All streams of one rank in one group.
class Streams {
 public:
  Streams(Family& family, Group& group, Statistics& statistics);

  Work submit(const Collective& collective);
  // Advances what can be. Throws CollectiveMismatch.
  void progress();
  bool known(Work work) const noexcept { return (work.sequence & ~kBetweenTwo) <= submitted_; }
  bool over(std::uint64_t work) const noexcept { return find(work) == nullptr; }
  std::uint64_t in_flight() const noexcept { return in_flight_; }
  std::uint64_t finished_ns() const noexcept { return finished_ns_; }  // when the last one ended
  Statistics::Entry stats_of(std::uint64_t work) const noexcept;
  // What an unfinished work waits for, and what it is, for messages.
  Need need_of(std::uint64_t work) const noexcept;
  std::string describe(std::uint64_t work) const;
  // The streams in my heap: no longer mine.
  std::vector<std::uint64_t> take_blocks() noexcept { return std::move(blocks_); }

 private:
  struct Outgoing {
    Stream* stream = nullptr;
    std::uint64_t letters = 0;  // posted
    std::deque<Transfer> sends;
  };
  struct Incoming {
    Stream* stream = nullptr;
    std::uint64_t chunks = 0;   // taken out
    std::uint64_t letters = 0;  // received
    std::deque<Transfer> receives;
  };
  const Transfer* find(std::uint64_t work) const noexcept;
  void open(int peer);
  void progress_sends(int peer);
  void progress_receives(int peer);
  bool post(int peer, Transfer& send);
  void fill(int peer, Transfer& send);
  bool receive(int peer, Transfer& receive);
  bool drain(int peer, Transfer& receive);
  void finish(Transfer& transfer) noexcept;
  void check_letter(const Transfer& receive, const Letter& letter) const;
  void raise(std::atomic<std::uint64_t>& flag, std::uint64_t value, int peer) noexcept;

  Family& family_;
  Group& group_;
  Statistics& statistics_;
  std::vector<Outgoing> outgoing_;
  std::vector<Incoming> incoming_;
  std::vector<std::uint64_t> blocks_;
  std::uint64_t submitted_ = 0;
  std::uint64_t in_flight_ = 0;
  std::uint64_t finished_ns_ = 0;
};

}  // namespace ngd::comm::shm
