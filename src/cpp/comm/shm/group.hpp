// SPDX-License-Identifier: Apache-2.0
// What a rank sees of its group, and a collective in flight as that rank sees it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/reduce.hpp"
#include "base/step.hpp"
#include "comm/blocks.hpp"
#include "comm/collective.hpp"
#include "comm/computations.hpp"
#include "comm/shm/numa.hpp"
#include "comm/shm/segment.hpp"
#include "comm/shm/wait.hpp"

namespace ngd::comm::shm {

// What a task waits for: a flag of the ranks [first, last), in their slots of a sequence, to reach
// a value. My own do not count. (Letter stands for a send or a receive with that rank: stream.hpp.)
struct Need {
  enum class Flag : std::uint8_t { Published, Step, Taken, Finished, Letter };
  Flag flag = Flag::Published;
  int first = 0;  // moves on past every rank whose flag has been seen to be there
  int last = 0;
  std::uint64_t sequence = 0;
  std::uint64_t value = 0;
};

enum class Path : std::uint8_t {
  Undecided,
  Inline,
  FlatDirect,
  FlatStaged,
  Nodes,
  Ring,
  Exchange,
  Together
};

// A block of an exchange between two ranks, in bytes: where in the producer's source and in the
// consumer's destination, and where it may be read at once (exchange.cpp).
struct Piece {
  std::uint64_t source = 0;
  std::uint64_t bytes = 0;
  std::uint64_t destination = 0;
  const std::byte* direct = nullptr;
};

// A collective in flight. Algorithms are state machines: they advance a task until its need is not
// met, and keep in it where they are.
struct TaskState {
  std::uint64_t sequence = 0;
  Kind kind = Kind::Barrier;
  ReduceOp op = ReduceOp::None;
  DType dtype = DType::U8;
  Algorithm algorithm = Algorithm::Flat;  // never Auto
  int root = 0;
  std::uint64_t count = 0;
  const std::byte* source = nullptr;
  std::byte* destination = nullptr;

  std::uint32_t stats = 0;         // its entry there
  std::uint64_t moved_bytes = 0;   // for them
  std::uint64_t waited_ns = 0;     // for a slot, before it was published
  std::uint64_t completed_ns = 0;  // CLOCK_MONOTONIC

  Path path = Path::Undecided;
  bool staged = false;     // data pass through my staging area: I have the lane, or wait for it
  bool arrived = false;    // all ranks have published, and agree
  bool has_lane = false;   // I may fill it
  bool lane_done = false;  // I shall fill it no more
  bool complete = false;
  Need need;
  int phase = 0;  // of the algorithm
  int round = 0;  // within the phase
  std::uint64_t chunk = 0;
  std::uint64_t lane = 0;  // my first ticket (lane.hpp)

  // Of an exchange.
  bool uneven = false;             // blocks are as large as counts say
  bool in_place = false;           // what I take comes where what I give has stood
  bool may_be_together = false;    // as far as I know (together.cpp)
  bool takes = false;              // there is something to take from others
  bool shares = false;             // the others read my source in place
  bool others_need_word = false;   // some of them wait until I have read
  bool own_done = false;           // my own block is in its place
  bool any_staged = false;         // some of what I take comes through a lane
  std::uint64_t source_bytes = 0;  // of each producer, where all blocks are equal
  std::uint64_t out_chunks = 0;    // that pass through my lane
  std::uint64_t filled = 0;        // of these, how many stand in it, or have
  std::uint64_t in_chunks = 0;     // that I take from my peers
  std::uint64_t taken = 0;         // of these, how many I have
  int producer = 0;                // whose part of the next one is next

  std::size_t bytes() const noexcept { return count * size_of(dtype); }
};

struct Task : TaskState {
  // Of an exchange: what I take, by producer; what I give, by consumer.
  std::vector<Piece> incoming, outgoing;
  void begin() { static_cast<TaskState&>(*this) = TaskState{}; }
};

// The ranks of a group, numbered from 0, and where they lie.
class Group {
 public:
  // By rank: the rank's segment with its control block of this group, and its rank in the world.
  struct Member {
    Segment segment;
    int world = 0;
  };
  // `moves` counts flags that were waited for and have been seen. checked: fingerprints are
  // compared. held: what my programs compute; it lives as long.
  Group(std::vector<Member> members, int rank, std::uint64_t id, std::uint64_t& moves, bool checked,
        const Computations& held);

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  std::uint64_t id() const noexcept { return id_; }  // 0 = the world
  Nodes nodes() const noexcept { return nodes_; }
  const Segment& segment(int rank) const noexcept {
    return members_[static_cast<std::size_t>(rank)].segment;
  }
  int world(int rank) const noexcept { return members_[static_cast<std::size_t>(rank)].world; }
  const Segment& mine() const noexcept { return segment(rank_); }
  RankRecord& record(int rank) const noexcept { return segment(rank).record(); }
  Control& control(int rank) const noexcept { return segment(rank).control(); }
  // "" for the world, else " in the group of rank 1, rank 3", for messages.
  std::string where() const;

  // Raises a flag of mine, and wakes who sleeps for it.
  void raise(std::atomic<std::uint64_t>& flag, std::uint64_t value) const noexcept {
    protocol_step();
    flag.store(value);
    protocol_step();
    ring_bells();
    protocol_step();
  }
  void raise_step(const Task& task, std::uint64_t step) const noexcept {
    raise(mine().slot(task.sequence).step, step);
  }
  void raise_taken(const Task& task, std::uint64_t chunks) const noexcept {
    raise(mine().slot(task.sequence).taken, chunks);
  }
  void ring_bells() const noexcept {
    for (int r = 0; r < size_; ++r)
      if (r != rank_) ring_bell(record(r), world(rank_));
  }

  void wake_all() const noexcept {
    for (int r = 0; r < size_; ++r)
      if (r != rank_) wake(record(r));
  }

  Need all(Need::Flag flag, std::uint64_t sequence, std::uint64_t value) const noexcept {
    return {flag, 0, size_, sequence, value};
  }
  Need all_step(const Task& task, std::uint64_t step) const noexcept {
    return all(Need::Flag::Step, task.sequence, step);
  }
  Need one_step(const Task& task, int rank, std::uint64_t step) const noexcept {
    return {Need::Flag::Step, rank, rank + 1, task.sequence, step};
  }
  bool has(const Need& need, int rank) const noexcept;
  // Whether a need is met. Throws CollectiveMismatch where a rank has published, and something
  // else.
  bool met(Need& need);
  // The ranks of the world that a need still lacks.
  std::vector<int> missing(const Need& need) const;

  // Throws CollectiveMismatch if `rank` has published another collective than this rank.
  void compare(std::uint64_t sequence, int rank) const;
  // The collective that a rank has published.
  const CallRecord& call(std::uint64_t sequence, int rank) const noexcept {
    return segment(rank).slot(sequence).call;
  }

  // Room for one pointer a rank.
  const void** sources() noexcept { return sources_.data(); }
  void** destinations() noexcept { return destinations_.data(); }

 private:
  CallDetails details_of(std::uint64_t sequence, int rank) const;

  std::vector<Member> members_;
  int rank_;
  int size_;
  std::uint64_t id_;
  std::uint64_t& moves_;
  bool checked_;
  const Computations& held_;
  Nodes nodes_;
  std::vector<const void*> sources_;
  std::vector<void*> destinations_;
};

// As comm::part_of: near-equal parts that begin on cache lines.
inline Slice lines_of(Slice whole, int part, int parts, std::size_t element_bytes) noexcept {
  return part_of(whole, part, parts, kLine / element_bytes);
}

}  // namespace ngd::comm::shm
