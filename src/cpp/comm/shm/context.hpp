// SPDX-License-Identifier: Apache-2.0
// The data of a pending collective that all algorithms use (TaskHead), and the argument of an
// algorithm's functions (Context).
//
// An algorithm is a state machine; task.hpp lists the algorithms. The state of an algorithm is a
// class with two functions, which never block:
//   bool advance(Context&)        continue as far as possible. Return true if the collective is
//                                 complete on this rank. Otherwise return false: the condition to
//                                 wait for before the next call is in TaskHead::need
//   void start_early(Context&)    called before all ranks have arrived: do the work that needs no
//                                 peer. Only Exchange, FlatStaged and NodesStaged have it
// A collective is complete on a rank if its destination holds the result and no peer reads or
// writes its operands any more.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/shm/group.hpp"
#include "comm/shm/staging.hpp"
#include "comm/stats.hpp"

namespace ngd::comm::shm {

// The use of this rank's staging buffers by one collective.
struct StagingClaim {
  bool is_needed = false;   // the collective moves data of this rank through the staging buffers
  bool is_granted = false;  // the collective may fill the staging buffers now
  bool has_ended = false;   // the collective has filled a staging buffer for the last time
  // The number (ticket) of the first chunk that the collective copies to a staging buffer. Tickets
  // count the copied chunks of all collectives of the group (staging.hpp).
  std::uint64_t first = 0;
};

struct TaskHead {
  std::uint64_t sequence = 0;
  Kind kind = Kind::Barrier;
  ReduceOp op = ReduceOp::None;
  DType dtype = DType::U8;
  Algorithm algorithm = Algorithm::Flat;  // Ring or Flat: the result of requested_algorithm()
  int root = 0;
  bool has_counts = false;   // the caller has given the sizes of the blocks
  bool has_arrived = false;  // all ranks have published their calls, which agree
  bool is_complete = false;
  std::uint64_t count = 0;
  const std::byte* source = nullptr;
  std::byte* destination = nullptr;

  Need need;  // the condition that the next step waits for
  StagingClaim staging;

  Statistics::Entry stats = 0;
  std::uint64_t moved_bytes = 0;  // the bytes that this rank has moved, for the statistics
  // The time that the collective waited before this rank could publish it, because at most kSlots
  // collectives of a group are published at once (slot_queue.hpp).
  std::uint64_t waited_ns = 0;
  std::uint64_t completed_ns = 0;  // the time of completion, CLOCK_MONOTONIC

  // Return the size in bytes of `count` elements. In some collectives, these are the whole array;
  // in others, they are one block (Collective::count).
  std::size_t bytes() const noexcept { return count * size_of(dtype); }
  // Return the size in bytes of the counts that this rank publishes: one number per rank of the
  // group. Return 0 if the caller has given no counts. The counts are stored before the payload.
  std::size_t counts_bytes(int ranks) const noexcept {
    return has_counts ? static_cast<std::size_t>(ranks) * sizeof(std::uint64_t) : 0;
  }
};

struct Context {
  Group& group;
  Staging& staging;
  TaskHead& task;
};

// Return true if `rank` gets the result of an all_reduce or a reduce.
inline bool gets_result(const TaskHead& task, int rank) noexcept {
  return task.kind == Kind::AllReduce || task.root == rank;
}

}  // namespace ngd::comm::shm
