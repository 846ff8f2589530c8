// SPDX-License-Identifier: Apache-2.0
// Sends and receives. A send is a letter from one rank, the sender, to another rank, the receiver.
// Sends are not numbered with the collectives of the group: the receiver takes a sender's letters
// in the order in which they were posted. The letters of an ordered pair of ranks are in a letter
// box: shared memory in the sender's heap, which the first send allocates. The sender's control
// block has the offset of the box.
//
// A payload of at most kLetterBytes is stored in its letter; the send is complete when the letter
// is posted. The receiver reads a larger source in place if it is in the shared arena (memory that
// all ranks of the host map); the send is complete when the receiver has reported that it has read
// the source. Other payloads are copied in chunks through two buffers of the letter box, which are
// used in turn; the send is complete when its last chunk is in a buffer.
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

// A letter is the entry of one send in shared memory. A letter box has kLetters letters, all from
// one rank to one other rank. A letter has space for a payload of kLetterBytes.
inline constexpr std::uint64_t kLetters = 8;
inline constexpr std::size_t kLetterBytes = 1 << 10;
inline constexpr std::size_t kLetterChunkBytes = 128 << 10;
// The highest bit of a work's number. It is set in the numbers of sends and receives, and not set
// in the numbers of collectives, so the two never have the same number.
inline constexpr std::uint64_t kLetterBit = std::uint64_t{1} << 63;

struct Letter {
  std::uint64_t count;
  // The offset of the data in the sender's segment. kInline: the data are in `payload`. kPrivate:
  // the sender copies the data to LetterBox::chunks.
  std::uint64_t source_offset;
  std::int32_t tag;
  DType dtype;
  char site[kSiteBytes];
  alignas(kLine) std::byte payload[kLetterBytes];
};

struct LetterBox {
  // Counters that only the sender changes. `posted`: the number of sends that it has written to
  // `letters`. `filled`: the number of chunks that it has filled with data of sends.
  alignas(kLine) std::atomic<std::uint64_t> posted;
  std::atomic<std::uint64_t> filled;
  // Counters that only the receiver changes. `received`: the number of sends that it has received
  // completely. `drained`: the number of chunks that it has copied to its destinations.
  alignas(kLine) std::atomic<std::uint64_t> received;
  std::atomic<std::uint64_t> drained;
  Letter letters[kLetters];
  alignas(kLine) std::byte chunks[2][kLetterChunkBytes];
};

// A send or a receive of this rank that is not complete.
struct PendingLetter {
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

  // Three members for sends. `is_posted`: the send has an entry (Letter) in shared memory.
  // `letter`: the number of sends that this rank had posted to `peer` before this one. `offset`:
  // the offset of the source in this rank's segment; kInline if the entry has the data; kPrivate
  // if the source is in private memory.
  bool is_posted = false;
  std::uint64_t letter = 0;
  std::uint64_t offset = kPrivate;
  std::size_t moved = 0;  // the bytes copied to, or from, chunks so far
  bool is_complete = false;

  std::size_t bytes() const noexcept { return count * size_of(dtype); }
};

// The pending sends and receives of one rank in one group. A letter is the entry of a send in
// shared memory.
class Letters {
 public:
  Letters(Family& family, Group& group, Statistics& statistics);

  // Start a send or a receive, without waiting; collective.root is the peer. The operand must stay
  // valid until the work is complete. Throws OutOfMemory, CollectiveMismatch.
  Work submit(const Collective& collective);
  // Advance all sends and receives. Throws CollectiveMismatch if a send and its receive differ in
  // their dtype, number of elements or tag.
  void progress();
  // Return true if a send or a receive with this number was submitted.
  bool is_known(std::uint64_t work) const noexcept { return (work & ~kLetterBit) <= submitted_; }
  // Return true if no send or receive with this number is pending.
  bool is_complete(std::uint64_t work) const noexcept { return find(work) == nullptr; }
  // Return the number of sends and receives that are not complete.
  std::uint64_t in_flight() const noexcept { return in_flight_; }
  // Return the time, in ns, when a send or a receive was last completed.
  std::uint64_t finished_ns() const noexcept { return finished_ns_; }
  // Return the statistics entry of a pending send or receive; 0 if it is not pending.
  Statistics::Entry stats_of(std::uint64_t work) const noexcept;
  // Return the need (the condition to wait for) of a pending send or receive.
  Need need_of(std::uint64_t work) const noexcept;
  // Return a text that describes the call of a pending send or receive, for messages. Return "send
  // or recv" if no such work is pending.
  std::string describe(std::uint64_t work) const;
  // Return the heap offsets of this rank's letter boxes: the shared memory for its sends, one box
  // per receiving rank. The caller must release the boxes.
  std::vector<std::uint64_t> take_blocks() noexcept { return std::move(blocks_); }

 private:
  struct Outgoing {
    LetterBox* box = nullptr;
    std::uint64_t posted = 0;  // the number of sends that this rank has posted to the peer
    std::deque<PendingLetter> sends;
  };
  struct Incoming {
    LetterBox* box = nullptr;
    std::uint64_t drained = 0;   // the number of chunks copied to destinations
    std::uint64_t received = 0;  // the number of sends of the peer that this rank has received
    std::deque<PendingLetter> receives;
  };
  // Return the pending send or receive with this number, otherwise null.
  const PendingLetter* find(std::uint64_t work) const noexcept;
  // Allocate the letter box, the shared memory for sends to `peer`, and publish its offset.
  void open(int peer);
  void progress_sends(int peer);
  // Complete the receives from `peer`, in their order, as far as possible.
  void progress_receives(int peer);
  // Write the letter of a send (its entry in shared memory). Return false if all kLetters entries
  // for `peer` are in use.
  bool post(int peer, PendingLetter& send);
  // Copy the source of a send, chunk by chunk, to the letter box (the shared memory for sends to
  // `peer`). Stop when neither of its two chunks is free.
  void fill(int peer, PendingLetter& send);
  // Copy the available data of the peer's next send. Return true if all its data are copied.
  bool receive(int peer, PendingLetter& receive);
  // Copy the filled chunks of the letter box (the shared memory for sends of `peer`) to the
  // destination. Return true if all data are copied.
  bool drain(int peer, PendingLetter& receive);
  // Count a send or a receive as complete, in in_flight() and in the statistics.
  void finish(PendingLetter& pending) noexcept;
  // Throw CollectiveMismatch if the receive and the letter (the entry of the peer's send) differ in
  // dtype, number of elements or tag.
  void check_letter(const PendingLetter& receive, const Letter& letter) const;
  // Raise a counter of a letter box (the memory for the sends of one rank to another rank). Wake
  // `peer` if it sleeps until this rank, or any rank, raises a flag.
  void raise(std::atomic<std::uint64_t>& flag, std::uint64_t value, int peer) noexcept;

  Family& family_;
  Group& group_;
  Statistics& statistics_;
  std::vector<Outgoing> outgoing_;
  std::vector<Incoming> incoming_;
  std::vector<std::uint64_t> blocks_;  // the heap offsets of the boxes in `outgoing_`
  std::uint64_t submitted_ = 0;
  std::uint64_t in_flight_ = 0;
  std::uint64_t finished_ns_ = 0;
};

}  // namespace ngd::comm::shm
