// SPDX-License-Identifier: Apache-2.0
// A family: the state that all groups of one rank share. It has the segments, the heap, the failure
// of the rank, and the wait ladder (wait.hpp), which decides if a waiting rank spins, yields or
// sleeps. If a rank fails in one of its groups, it has failed in all of them. A caller must hold
// the family's lock (monitor.hpp) to use this state. Values that never change need no lock.
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
#include "comm/shm/job_ranks.hpp"
#include "comm/shm/liveness.hpp"
#include "comm/shm/monitor.hpp"
#include "comm/shm/segment.hpp"
#include "comm/shm/wait.hpp"

namespace ngd::comm::shm {

// The functions of a group that the other groups of this rank call. For example, a rank that waits
// in one of its groups calls progress() of all its groups.
class Member {
 public:
  virtual ~Member() = default;
  // Advance all pending works (collectives, sends and receives) of the group, without waiting.
  virtual void progress() = 0;
  // Return the number of works (collectives, sends and receives) of the group that are not
  // complete.
  virtual std::uint64_t in_flight() const noexcept = 0;
  // Throw CollectiveMismatch if, in a pending collective of the group, the call of another rank
  // differs from that of this rank.
  virtual void check() const = 0;
  // Return true while this rank runs a program (a compiled step) that uses several groups,
  // including this one (Communicator::watch).
  virtual bool is_watched() const noexcept = 0;
  // Throw the failure that a rank of this group has reported. Do nothing if no rank has failed.
  virtual void check_peers() const = 0;
};

// The rank of this process among the ranks of the host, and settings that hold for all groups of
// the host.
struct Place {
  int rank = 0;
  int size = 1;
  bool crowded = false;  // there are more ranks than cores
  // True: compare the ranks' calls, and check that the ranks are alive. False is for measurements.
  bool checked = true;
  JobRanks job_ranks;
};

class Family {
 public:
  Family(std::unique_ptr<Memory> memory, std::unique_ptr<Liveness> liveness, Place place);

  int rank() const noexcept { return place_.rank; }  // the rank in the world
  int size() const noexcept { return place_.size; }  // the number of ranks of this host
  // Return the number that a rank has in the job, for messages and errors. `rank` is its number in
  // the world, the group of all ranks of this host.
  int job_rank(int rank) const noexcept { return place_.job_ranks[rank]; }
  // Return true if the ranks compare their calls and check their peers (Place::checked).
  bool checked() const noexcept { return place_.checked; }
  Memory& memory() noexcept { return *memory_; }
  Liveness& liveness() noexcept { return *liveness_; }
  Heap& heap() noexcept { return heap_; }
  Ladder& ladder() noexcept { return ladder_; }
  // Return the shared memory of a rank of the world, with its control block for the world.
  Segment segment(int rank) const noexcept { return memory_->segment(rank); }
  RankRecord& record() const noexcept { return segment(rank()).record(); }  // this rank's record
  Monitor& monitor() noexcept { return monitor_; }  // the lock of this object
  // Return the counter of progress in all groups of this rank. If it has not changed, a waiting
  // rank has made no progress.
  std::uint64_t& moves() noexcept { return moves_; }
  // Return true in a forked child of this rank. The child must not use this object.
  bool in_child() const noexcept { return fork_guard_.in_child(); }

  // join() adds a group of this rank to members(), and leave() removes it.
  void join(Member& member) { members_.push_back(&member); }
  void leave(Member& member) noexcept { std::erase(members_, &member); }
  const std::vector<Member*>& members() const noexcept { return members_; }
  // Advance the pending collectives, sends and receives of all groups.
  void progress() {
    for (Member* member : members_) member->progress();
  }
  // Return the number of pending works (collectives, sends and receives) of all groups.
  std::uint64_t in_flight() const noexcept;

  // Report to the peers that this rank has failed, and why. `ranks` are the ranks of the job that
  // the message blames; none means this rank. The first failure is kept. Allocates no memory.
  void fail_with(ErrorKind kind, std::string_view message,
                 std::span<const int> ranks = {}) noexcept;
  // Return true if this rank has failed: fail_with() was called.
  bool failed() const noexcept { return failed_; }
  // Called when the world is closed: all groups are closed with it.
  void close() noexcept { closed_ = true; }
  bool closed() const noexcept { return closed_; }
  // why() returns the text of this rank's failure. blamed() returns the ranks of the job that the
  // failure blames.
  std::string_view why() const noexcept { return error_text_of(record()); }
  std::vector<int> blamed() const { return error_ranks_of(record()); }
  // Throw GroupClosed for the call `call`, which is not possible any more. The message gives the
  // reason: the call's group (if `is_closed`) or the world is closed, or this rank has failed.
  [[noreturn]] void refuse(const std::string& call, bool is_closed) const;
  // Throw the failure that `rank`, a rank of the world, has reported. Do nothing if the rank has
  // not failed.
  void check_rank(int rank) const;
  // time_to_watch() returns true if the caller must check the peers' processes again: that needs
  // system calls, so it is done at most every 20 ms. time_to_ask() returns true if the caller must
  // call the interrupt callback again, at most every 50 ms. `now`: the time in ns.
  bool time_to_watch(std::uint64_t now) noexcept;
  bool time_to_ask(std::uint64_t now) noexcept;

  // new_control() allocates a control block (the data of this rank for one group) for a new group.
  // new_common() allocates the header Common, and after it `bytes` bytes that several ranks share.
  // Both return the offset of the new memory in this rank's segment.
  std::uint64_t new_control(std::uint64_t group);
  std::uint64_t new_common(std::size_t bytes);
  // Memory in this rank's heap that its peers may still use: the control block of a closed group,
  // or memory that several ranks share. Each of the `ranks` ranks, this rank included, increments
  // the counter `departed` when it does not use the memory any more. The memory is released when
  // the counter is equal to `ranks`.
  struct Retired {
    // The number of ranks that do not use the memory any more. It is stored in the header of the
    // memory (Control or Common).
    std::atomic<std::uint32_t>* departed = nullptr;
    std::uint64_t block = 0;
    int ranks = 0;
    std::vector<std::uint64_t> letter_boxes{}, texts{};
  };
  // Keep the memory that `blocks` describes until no rank uses it, as its counter `departed` shows.
  // Then release it. `blocks` has at most one entry, which the caller has allocated. This function
  // must not allocate memory, so it moves the entry to this family's list (std::list::splice()).
  void retire(std::list<Retired> blocks) noexcept;

 private:
  // Release the memory in retired_ that no rank uses any more.
  void sweep() noexcept;

  ForkGuard fork_guard_;
  Place place_;
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<Liveness> liveness_;
  Heap heap_;
  Ladder ladder_;
  Monitor monitor_;
  std::uint64_t moves_ = 0;
  std::vector<Member*> members_;
  bool failed_ = false;
  bool closed_ = false;
  std::uint64_t watched_ns_ = 0;
  std::uint64_t asked_ns_ = 0;
  std::list<Retired> retired_;
};

}  // namespace ngd::comm::shm
