// SPDX-License-Identifier: Apache-2.0
// A group as one of its ranks sees it: the shared memory (segment) of each rank, and the flags in
// that memory.
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

// A need: a condition that a pending collective of this rank waits for. Each other rank r in
// [first, last) must raise its own flag to at least `value`. The flags Published, Step and Taken
// are in r's record of collective number `sequence` (Slot). The flag Finished is in r's control
// block. Letter is not a flag: this rank waits for a send to, or a receive from, rank `first`
// (letters.hpp).
struct Need {
  enum class Flag : std::uint8_t { Published, Step, Taken, Finished, Letter };
  Flag flag = Flag::Published;
  int first = 0;  // the ranks before `first` have raised the flag to `value`
  int last = 0;
  std::uint64_t sequence = 0;
  std::uint64_t value = 0;
};

class Group {
 public:
  // A rank of the group. `segment`: a view of the rank's segment (the memory that it shares) and of
  // its control block for this group. `world`: its rank in the world of this host. `job_rank`: its
  // rank in the job.
  struct Rank {
    Segment segment;
    int world = 0;
    int job_rank = 0;
  };
  // `moves`: a counter of progress in all groups of this rank. It grows by one each time this rank
  // finds that a peer has raised a flag for which this rank waits. A wait compares the counter to
  // find out if there was progress. `checked`: true = compare the calls of the ranks in each
  // collective. `held`: the hashes of the compiled steps that this rank has loaded, which the
  // comparison uses (computations.hpp). `held` must outlive the group.
  Group(std::vector<Rank> ranks, int rank, std::uint64_t id, std::uint64_t& moves, bool checked,
        const Computations& held);

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  std::uint64_t id() const noexcept { return id_; }  // 0 = the world
  Nodes nodes() const noexcept { return nodes_; }
  // Return the shared memory of a rank, with its control block for this group.
  const Segment& segment(int rank) const noexcept {
    return ranks_[static_cast<std::size_t>(rank)].segment;
  }
  // Return the number of a rank of this group in the world, the group of all ranks of this host.
  int world(int rank) const noexcept { return ranks_[static_cast<std::size_t>(rank)].world; }
  // Return the number of a rank in the job, for error messages.
  int job_rank(int rank) const noexcept { return ranks_[static_cast<std::size_t>(rank)].job_rank; }
  const Segment& mine() const noexcept { return segment(rank_); }  // this rank's segment
  RankRecord& record(int rank) const noexcept { return segment(rank).record(); }
  Control& control(int rank) const noexcept { return segment(rank).control(); }
  // Return text for messages, such as " in the group of rank 1, rank 3"; "" for the world.
  std::string where() const;

  // Raise a flag of this rank, and wake the ranks that sleep until it is raised.
  void raise(std::atomic<std::uint64_t>& flag, std::uint64_t value) const noexcept {
    protocol_step();
    flag.store(value);
    protocol_step();
    ring_bells();
    protocol_step();
  }
  // raise_step() raises this rank's flag Slot::step of collective number `sequence`, raise_taken()
  // its flag Slot::taken. Both wake the ranks that sleep until the flag is raised.
  void raise_step(std::uint64_t sequence, std::uint64_t step) const noexcept {
    raise(mine().slot(sequence).step, step);
  }
  void raise_taken(std::uint64_t sequence, std::uint64_t chunks) const noexcept {
    raise(mine().slot(sequence).taken, chunks);
  }
  // Wake the peers that sleep until this rank raises a flag, and those that sleep until any rank
  // does.
  void ring_bells() const noexcept {
    for (int r = 0; r < size_; ++r)
      if (r != rank_) ring_bell(record(r), world(rank_));
  }

  // Wake all peers that sleep, even those that wait for another rank.
  void wake_all() const noexcept {
    for (int r = 0; r < size_; ++r)
      if (r != rank_) wake(record(r));
  }

  // Return a need (a condition to wait for). all(): all ranks must raise `flag` to `value` or more.
  // all_step(), one_step(): all ranks, or only `rank`, must raise Slot::step to `step` or more.
  Need all(Need::Flag flag, std::uint64_t sequence, std::uint64_t value) const noexcept {
    return {flag, 0, size_, sequence, value};
  }
  Need all_step(std::uint64_t sequence, std::uint64_t step) const noexcept {
    return all(Need::Flag::Step, sequence, step);
  }
  Need one_step(std::uint64_t sequence, int rank, std::uint64_t step) const noexcept {
    return {Need::Flag::Step, rank, rank + 1, sequence, step};
  }
  // Return true if `rank` is this rank, or has raised the flag need.flag to need.value or more. For
  // Flag::Letter, which is not a flag in memory, return true only if `rank` is this rank.
  bool has(const Need& need, int rank) const noexcept;
  // Increment need.first past each rank that has raised the flag need.flag, and count these ranks
  // in `moves`. Stop at the first rank that has not. Return true if all ranks before need.last have
  // raised it.
  // Throws CollectiveMismatch if the call of a rank differs from that of this rank.
  bool met(Need& need);
  // Return the ranks that have not met a need (the condition that a collective waits for), by their
  // numbers in the job.
  std::vector<int> missing(const Need& need) const;

  // Throw CollectiveMismatch if collective number `sequence` of `rank` differs from that of this
  // rank.
  void compare(std::uint64_t sequence, int rank) const;
  // Return the record of the collective with this number that a rank has published.
  const CallRecord& call(std::uint64_t sequence, int rank) const noexcept {
    return segment(rank).slot(sequence).call;
  }

  // Called when this rank has left the group. The object stays valid, but each further call in the
  // group is refused with GroupClosed.
  void close() noexcept { closed_ = true; }
  bool is_closed() const noexcept { return closed_; }

  // Scratch space for the operands of a reduction: one pointer per rank.
  const void** sources() noexcept { return sources_.data(); }
  void** destinations() noexcept { return destinations_.data(); }

 private:
  // Return the published call of a rank, for the text of a mismatch.
  CallDetails details_of(std::uint64_t sequence, int rank) const;

  std::vector<Rank> ranks_;
  int rank_;
  int size_;
  std::uint64_t id_;
  std::uint64_t& moves_;
  bool checked_;
  const Computations& held_;
  bool closed_ = false;
  Nodes nodes_;
  std::vector<const void*> sources_;
  std::vector<void*> destinations_;
};

// Return part number `part` of a slice that is divided into `parts` near-equal parts
// (comm::part_of). Each part begins a whole number of cache lines after the beginning of the slice.
inline Slice lines_of(Slice whole, int part, int parts, std::size_t element_bytes) noexcept {
  return part_of(whole, part, parts, kLine / element_bytes);
}

}  // namespace ngd::comm::shm
