// SPDX-License-Identifier: Apache-2.0
// A rank's segment: what the ranks of one host share, one such piece of memory each.
//
//   record   | RankRecord: who I am, how I am, where I sleep, what went wrong
//   world    | the control block of the group of all ranks
//   heap     | the shared lane: allocate() and release(); here lie, too, the control blocks of the
//            | groups that were split off, and the streams of sends
//
// A control block is what I have in one group:
//
//   control  | Control: how far I am; Slot x kSlots: the collectives in flight, by sequence %
//            | kSlots
//   inline   | kInlineBytes x kSlots: payloads that ride beside the flag
//   layouts  | kLayoutBytes x kSlots: of arrays with several axes, and of lists of arrays
//   staging  | operands of private memory pass through here, chunk by chunk (lane.hpp)
//
// Only its owner writes to a control block, but for `departed` and buffers of the staging area that
// take results (flat.cpp). Everything in a slot but its second
// line is written before `published` is, and stays until every rank has finished the slot's
// sequence; so a peer that has read `published` may read all of it. Flags are stored and loaded
// sequentially consistent, because a sleeping peer is told of them (wait.hpp).
#pragma once

#include <algorithm>
#include <atomic>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "comm/identity.hpp"
#include "comm/shm/system.hpp"

namespace ngd::comm::shm {

inline constexpr std::uint64_t kMagic = 0x31'6d'68'73'2d'64'67'6eull;  // "ngd-shm1"
inline constexpr std::uint32_t kLayoutVersion = 8;
inline constexpr int kMaxRanks = 256;        // of a host
inline constexpr std::uint64_t kSlots = 64;  // collectives in flight
inline constexpr std::size_t kLine = 64;
inline constexpr std::size_t kErrorBytes = 16 << 10;
inline constexpr std::size_t kWaitWords = 31;         // of 8 characters
inline constexpr std::size_t kInlineBytes = 2 << 10;  // flat.cpp has the measurement
inline constexpr std::size_t kLayoutNumbers = 64;     // that are kept of a layout
inline constexpr std::size_t kStagingBytes = 4 << 20;

// Offsets of what is not found in the heap: it lies beside the flag; or in no segment.
inline constexpr std::uint64_t kInline = ~std::uint64_t{1};
inline constexpr std::uint64_t kPrivate = ~std::uint64_t{0};
// Of Slot::taken: I read nothing of my peers' sources (any more).
inline constexpr std::uint64_t kAll = ~std::uint64_t{0};

enum class State : std::uint32_t { Unborn, Running, Failed };

// Ranks of the world, where they stand in shared memory or in a message.
using RankSet = std::bitset<kMaxRanks>;
RankSet set_of(std::span<const int> ranks) noexcept;
std::vector<int> ranks_of(const RankSet& set);

struct RankRecord {
  // Who: written once, before the segment is shared.
  std::uint64_t magic;
  std::uint32_t version;
  std::int32_t rank;
  std::int32_t size;
  std::int32_t pid;
  std::int32_t node;  // the memory node that I run on, or kNoNode

  // How: the text, its kind and the ranks that it speaks of stand before the state says Failed.
  alignas(kLine) std::atomic<State> state;
  std::uint32_t error_kind;
  std::uint32_t error_length;
  RankSet error_ranks;

  // Where I sleep (wait.hpp).
  alignas(kLine) std::atomic<std::uint32_t> sleeping;
  std::atomic<std::uint32_t> doorbell;
  std::atomic<std::uint64_t> rung_ns;  // when a peer last woke me, CLOCK_MONOTONIC

  // The rank that I wait for outside of shared memory, and when I said so: it is old after a second.
  std::atomic<std::int32_t> awaited;
  std::atomic<std::uint64_t> awaited_ns;

  // What I have waited in for long, for a rank that misses me; odd while it is being written.
  alignas(kLine) std::atomic<std::uint64_t> wait_version;
  std::atomic<std::uint64_t> wait_text[kWaitWords];

  alignas(kLine) char error_text[kErrorBytes];
};

struct Slot {
  // All that the fast path of a collective reads of a peer: one line.
  alignas(kLine) std::atomic<std::uint64_t> published;  // the flag: the sequence
  std::uint64_t fingerprint;                            // of `call`, mixed with the group
  std::uint64_t source_offset;                          // in this segment, or kInline, or kPrivate
  std::uint64_t destination_offset;                     // or kPrivate
  std::uint64_t arrived_ns;                             // CLOCK_MONOTONIC
  std::byte tiny[24];                                   // the payload, where it fits

  // How far I am in this collective.
  alignas(kLine) std::atomic<std::uint64_t> step;  // what it means, the algorithm says
  std::atomic<std::uint64_t> taken;                // chunks that I have read of every peer; kAll
  std::uint64_t lane;                              // my first ticket of my staging (lane.hpp)

  // What it is, for messages.
  alignas(kLine) CallRecord call;  // its counts, if any, precede the payload
  std::uint64_t program_offset;    // of the program's text in the heap, or kPrivate
  std::uint32_t program_length;
  std::uint32_t layout_entries;
  Layout::Of layout;  // its numbers are in Segment::layout_numbers()
};
static_assert(offsetof(Slot, step) == kLine && sizeof(Slot) == 4 * kLine);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

struct Control {
  std::uint64_t group;  // the same on all its ranks, and on those of no other group of the family
  // I have finished every sequence up to this one: of them I read no slot and no buffer any more.
  alignas(kLine) std::atomic<std::uint64_t> finished;
  alignas(kLine) std::atomic<std::uint32_t> left;  // I have left the group
  std::atomic<std::uint64_t> sequence;             // the last that I have submitted
  // How many ranks will not look at this block any more: written by them.
  alignas(kLine) std::atomic<std::uint32_t> departed;
  // Of my sends to each rank: the offset of their stream in my heap, or 0.
  alignas(kLine) std::atomic<std::uint64_t> streams[kMaxRanks];
  Slot slots[kSlots];
};

// What stands before memory that ranks have in common.
struct alignas(kLine) Common {
  std::atomic<std::uint32_t> departed;  // how many have given it back: written by them
};

constexpr std::size_t round_up(std::size_t value, std::size_t to) {
  return (value + to - 1) / to * to;
}

// Within a control block, and of one within a segment.
inline constexpr std::size_t kInlineOffset = round_up(sizeof(Control), 4096);
inline constexpr std::size_t kLayoutsOffset = kInlineOffset + kSlots * kInlineBytes;
inline constexpr std::size_t kLayoutBytes = kLayoutNumbers * sizeof(std::uint64_t);
inline constexpr std::size_t kStagingOffset = kLayoutsOffset + kSlots * kLayoutBytes;
inline constexpr std::size_t kControlBytes = kStagingOffset + kStagingBytes;
inline constexpr std::size_t kWorldOffset = round_up(sizeof(RankRecord), 4096);
inline constexpr std::size_t kHeapOffset = round_up(kWorldOffset + kControlBytes, 64 << 10);

// Views into one mapped segment, and into its owner's control block of one group.
class Segment {
 public:
  Segment() = default;
  Segment(std::byte* base, std::size_t bytes, std::uint64_t control = kWorldOffset)
      : base_(base), bytes_(bytes), control_(base + control) {}

  std::byte* base() const noexcept { return base_; }
  std::size_t bytes() const noexcept { return bytes_; }
  RankRecord& record() const noexcept { return *reinterpret_cast<RankRecord*>(base_); }
  Control& control() const noexcept { return *reinterpret_cast<Control*>(control_); }
  std::uint64_t control_offset() const noexcept {
    return static_cast<std::uint64_t>(control_ - base_);
  }
  Slot& slot(std::uint64_t sequence) const noexcept { return control().slots[sequence % kSlots]; }
  std::byte* payload(std::uint64_t sequence) const noexcept {
    return control_ + kInlineOffset + sequence % kSlots * kInlineBytes;
  }
  std::uint64_t* layout_numbers(std::uint64_t sequence) const noexcept {
    return reinterpret_cast<std::uint64_t*>(control_ + kLayoutsOffset +
                                            sequence % kSlots * kLayoutBytes);
  }
  std::byte* staging() const noexcept { return control_ + kStagingOffset; }
  std::byte* at(std::uint64_t offset) const noexcept { return base_ + offset; }

  // The offset of [pointer, pointer + bytes) where it lies in this segment's heap, else kPrivate.
  std::uint64_t offset_of(const void* pointer, std::size_t bytes) const noexcept;

 private:
  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
  std::byte* control_ = nullptr;
};

// Who maps whose segment: processes over sealed memfds, or threads over one mapping.
class Memory {
 public:
  virtual ~Memory() = default;
  virtual Segment segment(int rank) const noexcept = 0;  // as a rank of the world
  // The memfd of a rank's segment, for further mappings. -1 if the ranks are threads, or if this
  // program has closed the descriptor.
  virtual int descriptor(int) const noexcept { return -1; }
  // Backs a range of my own segment with pages. Throws OutOfMemory where there are none: without
  // this, the first touch of the range would be a SIGBUS.
  virtual void commit(std::size_t offset, std::size_t bytes) = 0;
};

// A new segment's memfd, sealed against resizing. Its size: the physical memory rounded up to 1
// GiB, at least 4 GiB; halved, down to 256 MiB, until `size` of them fit this process's address
// space (RLIMIT_AS). Pages come when they are committed. Throws OutOfMemory.
Descriptor create_segment(int size);

// Maps a segment that create_segment made in the process of a rank. Throws Init, OutOfMemory.
Mapping map_segment(const Descriptor& fd, int rank);

// Commits all of my own segment but the heap, and writes the record. The segment is zeroed.
void found(Memory& memory, int rank, int size, int node);

// Says in my own record that I have failed, why, and of which ranks that speaks.
void note_failure(RankRecord& mine, ErrorKind kind, std::string_view message,
                  std::span<const int> ranks) noexcept;

// Says in my own record what I wait in; "": in nothing.
void note_wait(RankRecord& mine, std::string_view what) noexcept;
// What another one says; "" also where it is just changing it.
std::string noted_wait(const RankRecord& record);
// Why a rank has failed, in its words. A rank that has overwritten its record must not make the
// others read beyond it.
inline std::string_view error_text_of(const RankRecord& record) noexcept {
  return {record.error_text, std::min<std::size_t>(record.error_length, kErrorBytes)};
}

// The memory of ranks that are processes: mappings and memfds by rank.
std::unique_ptr<Memory> make_process_memory(std::vector<Mapping> mappings, int rank,
                                            std::vector<KeptDescriptor> descriptors);

}  // namespace ngd::comm::shm
