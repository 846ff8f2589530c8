// SPDX-License-Identifier: Apache-2.0
// A rank's segment: what the ranks of one host share, one such piece of memory each.
//
//   control  | RankRecord: who I am, how I am, where I sleep, what went wrong
//            | Slot x kSlots: the collectives in flight, by sequence % kSlots
//   inline   | kInlineBytes x kSlots: payloads that ride beside the flag
//   staging  | operands of private memory pass through here, chunk by chunk
//   heap     | the shared lane: allocate() and release()
//
// Only its owner writes to a segment's control and inline parts. Everything in a slot but `step` is
// written before `published` is, and stays until every rank has finished the slot's sequence; so a
// peer that has read `published` may read all of it. Flags are stored and loaded sequentially
// consistent, because a sleeping peer is told of them (wait.hpp).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/collective.hpp"
#include "comm/shm/system.hpp"

namespace ngd::comm::shm {

inline constexpr std::uint64_t kMagic = 0x31'6d'68'73'2d'64'67'6eull;  // "ngd-shm1"
inline constexpr std::uint32_t kLayoutVersion = 1;
inline constexpr std::uint64_t kSlots = 64;  // collectives in flight
inline constexpr std::size_t kLine = 64;
inline constexpr std::size_t kErrorBytes = 16 << 10;
inline constexpr std::size_t kSiteBytes = 56;
inline constexpr std::size_t kInlineBytes = 2 << 10;  // flat.cpp has the measurement
inline constexpr std::size_t kStagingBytes = 4 << 20;
inline constexpr std::uint64_t kPrivate = ~std::uint64_t{0};  // offset of what is in no segment

enum class State : std::uint32_t { Unborn, Running, Failed, Left };

struct RankRecord {
  // Who: written once, before the segment is shared.
  std::uint64_t magic;
  std::uint32_t version;
  std::int32_t rank;
  std::int32_t size;
  std::int32_t pid;
  std::uint64_t group;  // 0 = the world
  std::uint64_t epoch;  // how many groups this job made before

  // How: the text and its kind stand before the state says Failed.
  alignas(kLine) std::atomic<State> state;
  std::uint32_t error_kind;
  std::uint32_t error_length;

  // Where I sleep (wait.hpp).
  alignas(kLine) std::atomic<std::uint32_t> sleeping;
  std::atomic<std::uint32_t> doorbell;

  // I have finished every sequence up to this one: of them I read no slot and no buffer any more.
  alignas(kLine) std::atomic<std::uint64_t> finished;

  // What I am in now, for whoever looks: the last sequence submitted, and when (CLOCK_MONOTONIC).
  alignas(kLine) std::atomic<std::uint64_t> sequence;
  std::atomic<std::uint64_t> arrived_ns;

  alignas(kLine) char error_text[kErrorBytes];
};

struct Slot {
  // All that the fast path of a collective reads of a peer: one line.
  alignas(kLine) std::atomic<std::uint64_t> published;  // the flag: the sequence
  std::uint64_t fingerprint;                            // of all that must be equal on all ranks
  std::uint64_t source_offset;                          // in this segment's heap, or kPrivate
  std::uint64_t destination_offset;
  std::byte tiny[32];  // the payload, where it fits

  // How far I am in this collective; what a step means, its algorithm says.
  alignas(kLine) std::atomic<std::uint64_t> step;

  // What it is, for messages.
  alignas(kLine) std::uint64_t count;
  std::uint64_t arrived_ns;
  std::uint64_t program_hash;
  std::uint64_t program_offset;  // of the program's text in the heap, or kPrivate
  std::uint32_t program_length;
  std::int32_t root;
  Kind kind;
  ReduceOp op;
  DType dtype;
  Algorithm algorithm;
  alignas(8) char site[kSiteBytes];
};
static_assert(offsetof(Slot, step) == kLine && sizeof(Slot) == 4 * kLine);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

struct Control {
  RankRecord record;
  Slot slots[kSlots];
};

constexpr std::size_t round_up(std::size_t value, std::size_t to) {
  return (value + to - 1) / to * to;
}

inline constexpr std::size_t kInlineOffset = round_up(sizeof(Control), 4096);
inline constexpr std::size_t kStagingOffset = kInlineOffset + kSlots * kInlineBytes;
inline constexpr std::size_t kHeapOffset = round_up(kStagingOffset + kStagingBytes, 64 << 10);

// Views into one mapped segment.
class Segment {
 public:
  Segment() = default;
  Segment(std::byte* base, std::size_t bytes) : base_(base), bytes_(bytes) {}

  std::byte* base() const noexcept { return base_; }
  std::size_t bytes() const noexcept { return bytes_; }
  RankRecord& record() const noexcept { return control().record; }
  Slot& slot(std::uint64_t sequence) const noexcept { return control().slots[sequence % kSlots]; }
  std::byte* payload(std::uint64_t sequence) const noexcept {
    return base_ + kInlineOffset + sequence % kSlots * kInlineBytes;
  }
  std::byte* staging() const noexcept { return base_ + kStagingOffset; }
  std::byte* at(std::uint64_t offset) const noexcept { return base_ + offset; }

  // The offset of [pointer, pointer + bytes) where it lies in this segment's heap, else kPrivate.
  std::uint64_t offset_of(const void* pointer, std::size_t bytes) const noexcept;

 private:
  Control& control() const noexcept { return *reinterpret_cast<Control*>(base_); }
  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
};

// Who maps whose segment: processes over sealed memfds, or threads over one mapping.
class Memory {
 public:
  virtual ~Memory() = default;
  virtual Segment segment(int rank) const noexcept = 0;
  // Backs a range of my own segment with pages. Throws OutOfMemory where there are none: without
  // this, the first touch of the range would be a SIGBUS.
  virtual void commit(std::size_t offset, std::size_t bytes) = 0;
};

// A new segment's memfd, sealed against resizing. Its size: the physical memory rounded up to 1
// GiB, at least 4 GiB; halved, down to 256 MiB, until `size` of them fit this process's address
// space (RLIMIT_AS). Pages come when they are committed. Throws OutOfMemory.
Descriptor create_segment(int size);

// Maps a segment that create_segment made, in this process or in a peer. Throws Init, OutOfMemory.
Mapping map_segment(const Descriptor& fd);

// Commits control, inline and staging of my own segment and writes the record. `mine` is zeroed.
void found(Memory& memory, int rank, int size);

// The memory of ranks that are processes: mappings by rank, and the memfd of my own.
std::unique_ptr<Memory> make_process_memory(std::vector<Mapping> mappings, Descriptor own);

}  // namespace ngd::comm::shm
