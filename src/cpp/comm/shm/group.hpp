// SPDX-License-Identifier: Apache-2.0
// What a rank sees of its group, and a collective in flight as that rank sees it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/reduce.hpp"
#include "comm/collective.hpp"
#include "comm/shm/liveness.hpp"
#include "comm/shm/segment.hpp"
#include "comm/shm/wait.hpp"

namespace ngd::comm::shm {

// What a task waits for: a flag of the ranks [first, last) to reach a value. My own do not count.
struct Need {
  enum class Flag : std::uint8_t { Published, Step, Finished };
  Flag flag = Flag::Published;
  int first = 0;  // moves on past every rank whose flag has been seen to be there
  int last = 0;
  std::uint64_t value = 0;
};

enum class Path : std::uint8_t { Undecided, Inline, FlatDirect, FlatStaged, Ring, Broadcast };

// A collective in flight. Algorithms are state machines: they advance a task until its need is not
// met, and keep in it where they are.
struct Task {
  std::uint64_t sequence = 0;
  Kind kind = Kind::Barrier;
  ReduceOp op = ReduceOp::None;
  DType dtype = DType::U8;
  Algorithm algorithm = Algorithm::Flat;  // never Auto
  int root = 0;
  std::uint64_t count = 0;
  const std::byte* source = nullptr;
  std::byte* destination = nullptr;

  Path path = Path::Undecided;
  bool staged = false;   // data pass through the staging area: I have the lane, or wait for it
  bool arrived = false;  // all ranks have published, and agree
  bool has_lane = false;
  bool complete = false;
  Need need;
  int phase = 0;  // of the algorithm
  int round = 0;  // within the phase
  std::uint64_t chunk = 0;
  std::uint64_t lane_chunk = 0;  // chunks that all earlier flat tasks have passed through the lane

  std::size_t bytes() const noexcept { return count * size_of(dtype); }
};

class Group {
 public:
  Group(std::unique_ptr<Memory> memory, std::unique_ptr<Liveness> liveness, int rank, int size);

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  Memory& memory() noexcept { return *memory_; }
  Liveness& liveness() noexcept { return *liveness_; }
  const Segment& segment(int rank) const noexcept {
    return segments_[static_cast<std::size_t>(rank)];
  }
  const Segment& mine() const noexcept { return segment(rank_); }
  RankRecord& record(int rank) const noexcept { return segment(rank).record(); }

  // Raises a flag of mine, and wakes who sleeps for it.
  void raise(std::atomic<std::uint64_t>& flag, std::uint64_t value) const noexcept {
    flag.store(value);
    ring_bells();
  }
  void raise_step(const Task& task, std::uint64_t step) const noexcept {
    raise(mine().slot(task.sequence).step, step);
  }
  void ring_bells() const noexcept {
    for (int r = 0; r < size_; ++r)
      if (r != rank_) ring_bell(record(r), rank_);
  }

  Need all(Need::Flag flag, std::uint64_t value) const noexcept { return {flag, 0, size_, value}; }
  Need one(int rank, std::uint64_t step) const noexcept {
    return {Need::Flag::Step, rank, rank + 1, step};
  }
  bool has(const Task& task, const Need& need, int rank) const noexcept;
  // Whether the task's need is met. Throws CollectiveMismatch where a rank has published, and
  // something else.
  bool met(Task& task);
  // The ranks for which a task waits.
  std::vector<int> missing(const Task& task) const;
  // Changes whenever a flag that was waited for has been seen.
  std::uint64_t moves() const noexcept { return moves_; }

  // Throws CollectiveMismatch where `rank` has published another collective than mine.
  void compare(std::uint64_t sequence, int rank) const;
  // A rank's collective, with its call site, from its slot.
  Collective read(std::uint64_t sequence, int rank) const noexcept;

  // Room for one pointer a rank.
  const void** sources() noexcept { return sources_.data(); }
  void** destinations() noexcept { return destinations_.data(); }

 private:
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<Liveness> liveness_;
  int rank_;
  int size_;
  std::uint64_t moves_ = 0;
  std::vector<Segment> segments_;
  std::vector<const void*> sources_;
  std::vector<void*> destinations_;
};

// The part of [0, count) that is rank's: near-equal parts that begin on cache lines.
struct Range {
  std::size_t begin, end;
  std::size_t count() const noexcept { return end - begin; }
};
Range part_of(std::size_t count, int part, int parts, std::size_t element_bytes) noexcept;

Combine combine_of(ReduceOp op) noexcept;
inline double divisor_of(const Task& task, int size) noexcept {
  return task.op == ReduceOp::Mean ? size : 1.0;
}

}  // namespace ngd::comm::shm
