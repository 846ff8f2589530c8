// SPDX-License-Identifier: Apache-2.0
// A rank's segment: the memory that it shares with the other ranks of its host. Each rank has one.
//
//   record   | RankRecord: identity, failure, where it sleeps, what it waits for
//   world    | the control block of the group of all ranks
//   heap     | the shared arena: allocate() and release(). The control blocks of groups that were
//            | split off, and the letter boxes of sends, are allocated here too
//
// A control block holds the data of a rank for one group:
//
//   control  | Control: the flags of the rank, and kSlots slots. Collective number s is published
//            | in slot s % kSlots
//   inline   | kInlineBytes per slot: the counts of a call, and a copy of the source if it is small
//   layouts  | kLayoutBytes per slot: layouts of arrays with several axes, and of lists of arrays
//   staging  | buffers for operands in private memory, chunk by chunk (staging.hpp)
//
// Only the rank that owns a control block writes to it, with two exceptions. A rank of the group
// that does not need the block any more increments the block's counter `departed`. Peers write
// results to staging buffers (flat.cpp, nodes.cpp).
//
// A rank writes everything in a slot before it sets the slot's flag `published`. Afterwards only
// the second cache line (`step`, `taken`, `first_ticket`) changes, until every rank has finished
// the collective of the slot. So a peer that has read `published` may read all of the slot. Flags
// are stored and loaded sequentially consistent, because a peer may sleep until one is raised
// (wait.hpp).
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

#include "base/bits.hpp"
#include "base/error.hpp"
#include "comm/identity.hpp"
#include "comm/shm/system.hpp"

namespace ngd::comm::shm {

inline constexpr std::uint64_t kMagic = 0x31'6d'68'73'2d'64'67'6eull;  // the characters "ngd-shm1"
inline constexpr std::uint32_t kLayoutVersion = 9;
inline constexpr int kMaxRanks = 256;  // the most ranks of a host
// The slots per group. A slot is the record in which a rank publishes one collective to its peers.
inline constexpr std::uint64_t kSlots = 64;
inline constexpr std::size_t kLine = 64;
inline constexpr std::size_t kErrorBytes = 16 << 10;
inline constexpr std::size_t kWaitWords = 31;  // the length of wait_text, in words of 8 characters
// The bytes of inline memory per slot (the record of one collective). If the source of a collective
// is small enough, a rank copies it into this memory, and the peers read the copy. inline.cpp has
// times for several sizes.
inline constexpr std::size_t kInlineBytes = 2 << 10;
// A layout (layout.hpp) has one number per axis of an array, or one per array of a list. The peers
// can read at most this many of these numbers, for error messages.
inline constexpr std::size_t kLayoutNumbers = 64;
inline constexpr std::size_t kStagingBytes = 4 << 20;

// A slot (the record of one collective) has the offset of each operand in the segment. Two values
// are not offsets. kInline: the slot or its inline memory has a copy of the operand's data.
// kPrivate: the operand is in private memory, or no peer needs its offset.
inline constexpr std::uint64_t kInline = ~std::uint64_t{1};
inline constexpr std::uint64_t kPrivate = ~std::uint64_t{0};
// The value of Slot::taken if this rank will read nothing more from its peers' sources.
inline constexpr std::uint64_t kAll = ~std::uint64_t{0};

enum class State : std::uint32_t { Unborn, Running, Failed };

// A set of ranks of this host, one bit per rank, for the messages of the rendezvous (channel.hpp).
using RankSet = std::bitset<kMaxRanks>;
// Return the set of `ranks`. Numbers outside of [0, kMaxRanks) are ignored.
RankSet set_of(std::span<const int> ranks) noexcept;
// Return the ranks of a set, in ascending order.
std::vector<int> ranks_of(const RankSet& set);

struct RankRecord {
  // The fields from `magic` to `node` identify the rank. They are written once, before the segment
  // is shared.
  std::uint64_t magic;
  std::uint32_t version;
  std::int32_t rank;
  std::int32_t size;
  std::int32_t pid;
  std::int32_t node;  // the NUMA node of this rank, or kNoNode

  // The failure: the text, its kind and the ranks that it blames are written before `state` is set
  // to Failed.
  alignas(kLine) std::atomic<State> state;
  std::uint32_t error_kind;
  std::uint32_t error_length;
  std::uint32_t num_error_ranks;
  std::int32_t error_ranks[kMaxRanks];  // the blamed ranks, by their numbers in the job

  // `sleeping`: if this rank sleeps, and which ranks must wake it (kAwake, kUntilAny or
  // until_rank() in wait.hpp). `doorbell`: the futex on which this rank sleeps. A peer changes it
  // to wake this rank.
  alignas(kLine) std::atomic<std::uint32_t> sleeping;
  std::atomic<std::uint32_t> doorbell;
  std::atomic<std::uint64_t> rung_ns;  // when a peer last woke this rank, CLOCK_MONOTONIC

  // The rank for which this rank waits outside of shared memory, for example a rank of another host
  // (note_awaited), and the time of this note. Peers ignore a note that is older than one second.
  std::atomic<std::int32_t> awaited;
  std::atomic<std::uint64_t> awaited_ns;

  // The text of the call in which this rank waits, if it has waited for a long time. Peers that
  // wait for this rank show the text in their error messages. The writer makes `wait_version` odd
  // before it changes the text, and even afterwards, so that a reader can detect a change (a
  // seqlock).
  alignas(kLine) std::atomic<std::uint64_t> wait_version;
  std::atomic<std::uint64_t> wait_text[kWaitWords];

  alignas(kLine) char error_text[kErrorBytes];
};

struct Slot {
  // The first cache line has the data of this rank that the peers need to begin the collective.
  // This rank writes the other data first, and then sets the flag `published` to the number of the
  // collective. source_offset and destination_offset are offsets in this segment, or kInline or
  // kPrivate (see above). arrived_ns is the time at which this rank published the collective.
  alignas(kLine) std::atomic<std::uint64_t> published;
  std::uint64_t fingerprint;  // a hash of `call` and of the group's id
  std::uint64_t source_offset;
  std::uint64_t destination_offset;
  std::uint64_t arrived_ns;  // CLOCK_MONOTONIC
  std::byte tiny[24];        // if source_offset is kInline: the data of the source, if they fit

  // The progress of this rank in the collective of this slot:
  //   step          in the algorithm of exchange.cpp, the number of chunks that this rank has
  //                 copied to its staging buffers; in other algorithms, the number of the last step
  //                 (schedule.hpp) that it has done
  //   taken         only in exchange.cpp: the number of chunks that this rank has read from each
  //                 peer that sends data to it, or kAll if it will read no more chunks
  //   first_ticket  chunk 0 of this rank is in its staging buffer first_ticket % kBuffers
  alignas(kLine) std::atomic<std::uint64_t> step;
  std::atomic<std::uint64_t> taken;
  std::uint64_t first_ticket;

  // The call of this rank: kind, dtype, sizes and call site. A peer reads it if its own
  // `fingerprint` differs from that of this rank, and for error messages. If the call has counts
  // (the size of each rank's block), they are at the beginning of the slot's inline memory.
  alignas(kLine) CallRecord call;
  // The offset in this segment of a text, for error messages, about the compiled step that made
  // the call: its collectives and its name. kPrivate if there is no such text.
  std::uint64_t program_offset;
  std::uint32_t program_length;
  std::uint32_t layout_entries;
  // The kind of the operands' layout: a sequence of elements, an array with several axes, or a list
  // of arrays (layout.hpp). Segment::layout_numbers() has the extents of the array, or the element
  // count and dtype of each array of the list.
  Layout::Of layout;
};
static_assert(offsetof(Slot, step) == kLine && sizeof(Slot) == 4 * kLine);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

struct Control {
  std::uint64_t group;  // the group's id: the same on all its ranks, different from other groups
  // This rank has finished all collectives up to this number: it does not read the peers' slots
  // (records) and buffers of these collectives any more.
  alignas(kLine) std::atomic<std::uint64_t> finished;
  alignas(kLine) std::atomic<std::uint32_t> left;  // not 0: this rank has left the group
  std::atomic<std::uint64_t> sequence;  // the last collective that this rank has published
  // The number of ranks that do not use this control block (this rank's data for the group) any
  // more. Each rank of the group increments it once.
  alignas(kLine) std::atomic<std::uint32_t> departed;
  // For each rank, the offset in this segment of the memory through which this rank sends data
  // to that rank (a letter box, letters.hpp); 0 if there was no send.
  alignas(kLine) std::atomic<std::uint64_t> letter_boxes[kMaxRanks];
  Slot slots[kSlots];
};

// The header of memory that several ranks share (CommonMemory).
struct alignas(kLine) Common {
  std::atomic<std::uint32_t> departed;  // the number of ranks that do not use the memory any more
};

// A control block (a rank's data for one group) begins with a Control. The other parts of the block
// begin at kInlineOffset, kLayoutsOffset and kStagingOffset. In a segment (a rank's shared memory),
// the control block of the world is at kWorldOffset, and the heap at kHeapOffset.
inline constexpr std::size_t kInlineOffset = round_up(sizeof(Control), 4096);
inline constexpr std::size_t kLayoutsOffset = kInlineOffset + kSlots * kInlineBytes;
inline constexpr std::size_t kLayoutBytes = kLayoutNumbers * sizeof(std::uint64_t);
inline constexpr std::size_t kStagingOffset = kLayoutsOffset + kSlots * kLayoutBytes;
inline constexpr std::size_t kControlBytes = kStagingOffset + kStagingBytes;
inline constexpr std::size_t kWorldOffset = round_up(sizeof(RankRecord), 4096);
inline constexpr std::size_t kHeapOffset = round_up(kWorldOffset + kControlBytes, 64 << 10);

// A view of one rank's mapped segment, and of one control block in it: the data of this rank for
// one group.
class Segment {
 public:
  Segment() = default;
  Segment(std::byte* base, std::size_t bytes, std::uint64_t control = kWorldOffset)
      : base_(base), bytes_(bytes), control_(base + control) {}

  std::byte* base() const noexcept { return base_; }
  std::size_t bytes() const noexcept { return bytes_; }
  RankRecord& record() const noexcept { return *reinterpret_cast<RankRecord*>(base_); }
  Control& control() const noexcept { return *reinterpret_cast<Control*>(control_); }
  // Return the offset of the control block in the segment.
  std::uint64_t control_offset() const noexcept {
    return static_cast<std::uint64_t>(control_ - base_);
  }
  // slot(), payload() and layout_numbers() return the memory of collective number `sequence` in the
  // control block: its slot, its inline memory and the numbers of its layout.
  Slot& slot(std::uint64_t sequence) const noexcept { return control().slots[sequence % kSlots]; }
  std::byte* payload(std::uint64_t sequence) const noexcept {
    return control_ + kInlineOffset + sequence % kSlots * kInlineBytes;
  }
  std::uint64_t* layout_numbers(std::uint64_t sequence) const noexcept {
    return reinterpret_cast<std::uint64_t*>(control_ + kLayoutsOffset +
                                            sequence % kSlots * kLayoutBytes);
  }
  // Return the beginning of the kStagingBytes of staging memory in the control block.
  std::byte* staging() const noexcept { return control_ + kStagingOffset; }
  // Return the address at an offset in the segment, not in the control block.
  std::byte* at(std::uint64_t offset) const noexcept { return base_ + offset; }

  // Return the offset of [pointer, pointer + bytes) in this segment if it is in the segment's heap,
  // otherwise kPrivate.
  std::uint64_t offset_of(const void* pointer, std::size_t bytes) const noexcept;

 private:
  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
  std::byte* control_ = nullptr;
};

// The shared memory of all ranks, mapped: one segment per rank. If the ranks are processes, each
// segment is a sealed memfd. If the ranks are threads, all segments are in one mapping.
class Memory {
 public:
  virtual ~Memory() = default;
  virtual Segment segment(int rank) const noexcept = 0;  // `rank`: a rank of the world
  // Return the memfd of a rank's segment, for further mappings. -1 if the ranks are threads, or if
  // this program has closed the descriptor.
  virtual int descriptor(int) const noexcept { return -1; }
  // Allocate the memory pages of a range of this rank's own segment. Throws OutOfMemory if there
  // are not enough. An access to a page that cannot be allocated would raise the signal SIGBUS.
  virtual void commit(std::size_t offset, std::size_t bytes) = 0;
};

// Create the memfd of a segment, sealed against resizing. `size`: the number of ranks on this host.
// The size of the segment is the physical memory, rounded up to a multiple of 1 GiB, but at least
// 4 GiB. If the segments of all `size` ranks do not fit into this process's address space
// (RLIMIT_AS), halve the size until they fit. Throws OutOfMemory if a segment would then be smaller
// than 256 MiB. The segment has no memory pages until Memory::commit() allocates them.
Descriptor create_segment(int size);

// Map the segment of rank `job_rank` of the job. `fd`: the memfd that the rank has made with
// create_segment(). Throws Init, OutOfMemory.
Mapping map_segment(const Descriptor& fd, int job_rank);

// Allocate the memory pages of this rank's own segment up to the heap, and write its RankRecord.
// The other bytes are zero, because the pages are new.
void initialise_segment(Memory& memory, int rank, int size, int node);

// Write to this rank's own record that it has failed: the kind, the message, and the ranks that the
// failure blames.
void note_failure(RankRecord& mine, ErrorKind kind, std::string_view message,
                  std::span<const int> ranks) noexcept;

// Write to this rank's own record the call in which it waits; "": it does not wait.
void note_wait(RankRecord& mine, std::string_view what) noexcept;
// Return the text of the call that another rank has written with note_wait(). Return "" if that
// rank does not wait, or is writing the text now.
std::string noted_wait(const RankRecord& record);
// Return the text of a rank's failure. The length is at most kErrorBytes, even if a faulty rank has
// overwritten the length in its record.
inline std::string_view error_text_of(const RankRecord& record) noexcept {
  return {record.error_text, std::min<std::size_t>(record.error_length, kErrorBytes)};
}
// Return the ranks that the failure in a record blames.
std::vector<int> error_ranks_of(const RankRecord& record);

// Return the shared memory of ranks that are processes (tests also have ranks that are threads).
// `mappings` and `descriptors` (of memfds) have one entry per rank.
std::unique_ptr<Memory> make_process_memory(std::vector<Mapping> mappings, int rank,
                                            std::vector<KeptDescriptor> descriptors);

}  // namespace ngd::comm::shm
