// SPDX-License-Identifier: Apache-2.0
// A group of ranks of one host. Each call checks that the group can be used, and takes the monitor:
// the lock that all groups of this rank share (monitor.hpp). One of these parts then does the work:
//   SlotQueue   publishes the submitted collectives in slots, which the peers can read
//   Letters     sends and receives
//   Scheduler   advances collectives
//   Waiter      waits, and finds out why a wait does not end
#pragma once

#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "comm/communicator.hpp"
#include "comm/shm/family.hpp"
#include "comm/shm/group.hpp"
#include "comm/shm/letters.hpp"
#include "comm/shm/program_texts.hpp"
#include "comm/shm/scheduler.hpp"
#include "comm/shm/slot_queue.hpp"
#include "comm/shm/waiter.hpp"
#include "comm/shm/works.hpp"
#include "comm/stats.hpp"

namespace ngd::comm::shm {

class ShmCommunicator final : public Communicator, private Member, private CommonMemory {
 public:
  // Make a group. `family`: the state that all groups of this rank share. After close(), the memory
  // of the control block, this rank's data for the group, returns to this rank's heap when no rank
  // uses the block any more.
  // `id`: 0 = the world, which keeps its control block.
  ShmCommunicator(std::shared_ptr<Family> family, std::vector<Group::Rank> ranks, int rank,
                  std::uint64_t id);
  ~ShmCommunicator() override;

  std::optional<Work> try_submit(const Collective& collective) override;
  Progress try_wait(Work work, const WaitLimits& limits) override;
  std::optional<std::unique_ptr<Communicator>> try_split(int color, int key) override;
  std::vector<int> missing(Work work) const override;
  std::vector<CallStats> stats() const override;

  SharedBlock allocate(std::size_t bytes) override;
  void release(SharedBlock block) noexcept override;
  CommonMemory* common_memory() noexcept override { return this; }

  void note_awaited(int awaited) noexcept override;
  int awaited_by(int rank) const noexcept override;
  void check_peers() const override;
  void give_up(ErrorKind kind, std::string_view why, std::span<const int> ranks) noexcept override;
  void close() noexcept override;
  bool is_over() const noexcept override;
  bool in_child() const noexcept override { return family_->in_child(); }

 private:
  void progress() override;
  std::uint64_t in_flight() const noexcept override { return works_.in_flight(); }
  void check() const override { works_.check_calls(); }
  bool is_watched() const noexcept override { return Communicator::is_watched(); }

  void check_not_child() const;
  // Throw GroupClosed if the group or the world is closed, or if this rank has failed. `call` is a
  // function that returns the text of the caller's call, for the error message.
  template <class Call>
  void check_usable(Call&& call) const {
    if (family_->failed() || group_.is_closed() || family_->closed()) [[unlikely]]
      family_->refuse(call(), group_.is_closed());
  }
  std::string describe_call(Collective collective) const;
  // Report the failure of this rank to the peers, with the text "rank N failed: " and then `why`.
  void report_failure(std::string_view why) noexcept;
  // submit_inside() does the work of submit, and wait_inside() the work of wait. The caller has
  // begun an engine call: it holds the lock (monitor.hpp). An error is also reported to the peers.
  // wait_inside() returns false if limits.patience_seconds have passed.
  Work submit_inside(const Collective& collective);
  bool wait_inside(Work work, const WaitLimits& limits);

  // make_common() allocates common memory (memory that all ranks of the group share). It returns
  // the number of this memory: the offset of its header in the segment of the rank that made it.
  std::uint64_t make_common(std::size_t bytes) override;
  std::shared_ptr<void> open_common(int maker, std::uint64_t number) override;
  std::unique_ptr<CopyOnWriteMapping> map_common(int maker, std::uint64_t number,
                                                 std::size_t bytes) override;

  // Do the work of split, for a caller that has begun an engine call: it holds the lock
  // (monitor.hpp). Return null if `color` is negative.
  std::unique_ptr<Communicator> split_inside(int color, int key);
  // The data that a rank sends to its peers in a split().
  struct Ticket {
    std::int64_t color;
    std::int64_t key;
    // The offset of the control block, the memory that the rank has allocated for its data for the
    // new group; kPrivate if it has allocated none.
    std::uint64_t control;
  };
  // Collect the Ticket of each rank (its color, its key and its control block) in `tickets`, with
  // an all_gather. Wait for the all_gather. On failure, call mark_left() and throw.
  void exchange_tickets(const Ticket& mine, std::vector<Ticket>& tickets);
  // Return the new group of the ranks with this color, ordered by key and then by old rank.
  std::unique_ptr<Communicator> make_group(const std::vector<Ticket>& tickets, int color,
                                           std::uint64_t id);
  void mark_left(std::uint64_t control) const noexcept;

  std::shared_ptr<Family> family_;
  Group group_;
  Statistics statistics_;
  Letters letters_;
  ProgramTexts texts_;
  SlotQueue queue_;
  Scheduler scheduler_;
  Works works_;
  Waiter waiter_;
  double split_timeout_;
  std::uint32_t splits_ = 0;
  // A list of one entry: the memory of the group that close() must release. close() fills in the
  // entry and passes it to Family::retire(), which releases the memory when no rank uses it any
  // more. The entry is allocated here, because close() must not allocate memory.
  std::list<Family::Retired> retired_ = std::list<Family::Retired>(1);
};

// Return the world: the group of all ranks of this host. Make the family, the state that the world
// and the groups split from it share on this rank.
std::unique_ptr<ShmCommunicator> make_world(std::unique_ptr<Memory> memory,
                                            std::unique_ptr<Liveness> liveness, Place place);

// Return the groups of ranks that are threads of this process, for tests. `nodes`: the NUMA node of
// each rank.
std::vector<std::unique_ptr<Communicator>> make_thread_ranks(int size,
                                                             const std::vector<int>& nodes = {},
                                                             const JobRanks& job_ranks = {});

}  // namespace ngd::comm::shm
