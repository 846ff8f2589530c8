// SPDX-License-Identifier: Apache-2.0
// What the groups of one rank share: the segments, the heap, the place on the wait ladder, and how
// the rank is. A rank that fails in one of its groups has failed in all. Whoever calls holds the
// monitor's lock, but for what never changes.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "comm/fork_guard.hpp"
#include "comm/shm/heap.hpp"
#include "comm/shm/liveness.hpp"
#include "comm/shm/monitor.hpp"
#include "comm/shm/segment.hpp"
#include "comm/shm/wait.hpp"

namespace ngd::comm::shm {

class ShmCommunicator;

struct Place {
  int rank = 0;
  int size = 1;
  bool crowded = false;  // more ranks than cores
  bool checked = true;   // false: no fingerprints and no watch, to measure what they cost
};

class Family {
 public:
  Family(std::unique_ptr<Memory> memory, std::unique_ptr<Liveness> liveness, Place place);

  int rank() const noexcept { return place_.rank; }  // in the world
  int size() const noexcept { return place_.size; }
  bool checked() const noexcept { return place_.checked; }
  Memory& memory() noexcept { return *memory_; }
  Liveness& liveness() noexcept { return *liveness_; }
  Heap& heap() noexcept { return heap_; }
  Ladder& ladder() noexcept { return ladder_; }
  Segment segment(int rank) const noexcept { return memory_->segment(rank); }
  RankRecord& record() const noexcept { return segment(rank()).record(); }
  Monitor& monitor() noexcept { return monitor_; }
  std::uint64_t& moves() noexcept { return moves_; }
  bool in_child() const noexcept { return fork_guard_.in_child(); }

  void join(ShmCommunicator& group) { groups_.push_back(&group); }
  void leave(ShmCommunicator& group) noexcept { std::erase(groups_, &group); }
  const std::vector<ShmCommunicator*>& groups() const noexcept { return groups_; }
  // Advances all that is in flight in any group.
  void progress();
  std::uint64_t in_flight() const noexcept;  // how many works, in all groups

  // Says that I have failed, why, and of which ranks of the world that speaks: of none means of me.
  // The first reason stays. Asks for no memory: there may be none.
  void fail_with(ErrorKind kind, std::string_view message,
                 std::span<const int> ranks = {}) noexcept;
  bool failed() const noexcept { return failed_; }
  // The group of all ranks is closed, and with it the family.
  void close() noexcept { closed_ = true; }
  bool closed() const noexcept { return closed_; }
  std::string_view why() const noexcept { return error_text_of(record()); }
  std::vector<int> blamed() const { return ranks_of(record().error_ranks); }
  // Throws what has become of a rank of the world that says that it has failed.
  void check_rank(int rank) const;
  // Whether it is time again for system calls about my peers, and to ask my caller.
  bool time_to_watch(std::uint64_t now) noexcept;
  bool time_to_ask(std::uint64_t now) noexcept;

  // A zeroed control block for a new group; memory for some ranks in common, behind a Common.
  std::uint64_t new_control(std::uint64_t group);
  std::uint64_t new_common(std::size_t bytes);
  // Blocks that others may be using: they are free when all their ranks have departed.
  struct Retired {
    std::atomic<std::uint32_t>* departed = nullptr;  // in the block
    std::uint64_t block = 0;
    std::vector<std::uint64_t> others;
    int ranks = 0;
    std::vector<std::uint64_t> texts{};  // of programs
  };
  void retire(std::list<Retired> blocks) noexcept;  // one, or none

 private:
  void sweep() noexcept;

  ForkGuard fork_guard_;
  Place place_;
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<Liveness> liveness_;
  Heap heap_;
  Ladder ladder_;
  Monitor monitor_;
  std::uint64_t moves_ = 0;
  std::vector<ShmCommunicator*> groups_;
  bool failed_ = false;
  bool closed_ = false;
  std::uint64_t watched_ns_ = 0;
  std::uint64_t asked_ns_ = 0;
  std::list<Retired> retired_;
};

}  // namespace ngd::comm::shm
