// SPDX-License-Identifier: Apache-2.0
// The engine of one host: publishes collectives, advances all that are in flight, waits, and
// watches.
#pragma once

#include <deque>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/error.hpp"
#include "comm/communicator.hpp"
#include "comm/shm/family.hpp"
#include "comm/shm/group.hpp"
#include "comm/shm/lane.hpp"
#include "comm/shm/stream.hpp"
#include "comm/stats.hpp"

namespace ngd::comm::shm {

class ShmCommunicator final : public Communicator {
 public:
  // A group of the family; the control block of mine that it uses is given back when it closes.
  ShmCommunicator(std::shared_ptr<Family> family, std::vector<Group::Member> members, int rank,
                  std::uint64_t id);
  ~ShmCommunicator() override;

  std::string_view name() const noexcept override { return "shm"; }
  int rank() const noexcept override { return group_.rank(); }
  int size() const noexcept override { return group_.size(); }
  int local_rank() const noexcept override { return group_.rank(); }
  int local_size() const noexcept override { return group_.size(); }

  Work submit(const Collective& collective) override;
  void wait(Work work, double timeout_seconds) override;
  void wait_on(Work work, double timeout_seconds, double waited_seconds) override;
  std::vector<int> missing(Work work) const override;
  void note_awaited(int awaited) noexcept override;
  int awaited_by(int rank) const noexcept override;
  bool done(Work work) override;
  bool wait_for(Work work, double seconds) override;
  std::unique_ptr<Communicator> split(int color, int key) override;
  std::vector<CallStats> stats() const override;
  SharedBlock allocate(std::size_t bytes) override;
  void release(SharedBlock block) noexcept override;
  bool has_common_memory() const noexcept override { return true; }
  bool is_over() const noexcept override;
  bool in_child() const noexcept override { return family_->in_child(); }
  void check_peers() const override;
  std::uint64_t make_common(std::size_t bytes) override;
  std::shared_ptr<void> open_common(int maker, std::uint64_t number) override;
  std::unique_ptr<CopyOnWriteMapping> map_common(int maker, std::uint64_t number,
                                                 std::size_t bytes) override;
  void abort(std::string_view traceback) noexcept override;
  void give_up(ErrorKind kind, std::string_view why, std::span<const int> ranks) noexcept override;
  void close() noexcept override;

  // For the family: what is in flight in this group.
  void progress();
  std::uint64_t in_flight() const noexcept {
    return submitted_ - finished_ + backlog_.size() + streams_.in_flight();
  }
  // Throws CollectiveMismatch where a rank has come to another collective: it must not hide behind
  // the absence of a third.
  void compare_all() const;

 private:
  // How long a call may block. at_ns is known once the first rungs of the ladder have not helped.
  struct Deadline {
    double seconds = 0;    // 0 = for ever
    bool is_error = true;  // else the call just returns
    std::uint64_t at_ns = 0;
    std::uint64_t slow_since_ns = 0;  // when the first rungs had not helped
    bool noted = false;               // in my record
  };

  // Where a program's text lies, for the message that a mismatch may need.
  struct ProgramText {
    std::uint64_t hash = 0;
    std::uint64_t computation = 0;
    std::uint64_t offset = kPrivate;
    std::uint32_t length = 0;
    std::uint64_t used = 0;  // the last sequence whose slot may point to it
  };
  // A collective that was submitted and has no slot yet, with copies of what its caller may free.
  struct Waiting {
    Collective collective;
    std::vector<std::uint64_t> counts, receive_counts, numbers;
    Layout layout;  // of these numbers
    char site[kSiteBytes];
    Statistics::Entry stats;
    ProgramText program;
    std::uint64_t since_ns;
  };

  void check_not_child() const;
  // Throws GroupClosed if the group is closed; call() describes the refused call.
  template <class Call>
  void check_usable(Call&& call) const {
    if (family_->failed() || closed_ || family_->closed()) [[unlikely]]
      refuse(call());
  }
  [[noreturn]] void refuse(const std::string& call) const;
  std::string describe_work(Work work) const;
  void check_still_open(Work work) const;
  void check_known(Work work) const;

  void leave_unborn(std::uint64_t control) const noexcept;
  // What a rank says to a split().
  struct Ticket {
    std::int64_t color;
    std::int64_t key;
    std::uint64_t control;  // its offset, or kPrivate
  };
  std::unique_ptr<Communicator> made_of(const std::vector<Ticket>& tickets, int color,
                                        std::uint64_t id);
  Work submit_inside(const Collective& collective);
  bool wait_inside(Work work, Deadline deadline);
  void start(const Collective& collective, Statistics::Entry stats, const ProgramText& program,
             std::uint64_t waited_ns);
  void keep_waiting(const Collective& collective, Statistics::Entry stats,
                    const ProgramText& program);
  bool has_free_slot();
  void start_from_backlog();
  Algorithm resolve(const Collective& collective) const;
  void prepare(Task& task, const Collective& collective);
  void publish(Task& task, const Collective& collective, const ProgramText& program);
  void publish_layout(Slot& slot, std::uint64_t sequence, const Layout& layout);
  void publish_source(Task& task, Slot& slot, const Collective& collective);
  ProgramText text_of(const ProgramIdentity* program);
  void release_unused_texts() noexcept;

  Task& task(std::uint64_t sequence) noexcept { return tasks_[sequence % kSlots]; }
  const Task& task(std::uint64_t sequence) const noexcept { return tasks_[sequence % kSlots]; }
  bool complete(std::uint64_t sequence) const noexcept;
  void advance_all();
  void advance(Task& task);
  void start_early(Task& task);
  void decide(Task& task) const;
  bool take_lane(Task& task);
  bool run(Task& task);
  void count(Task& task) noexcept;
  int last_to_come(std::uint64_t sequence) const noexcept;

  static bool is_transfer(Work work) noexcept { return (work.sequence & kBetweenTwo) != 0; }
  bool in_backlog(Work work) const noexcept {
    return !is_transfer(work) && work.sequence > submitted_;
  }
  // Blocks until a work is complete, advancing everything. False where the time is over and that is
  // no error.
  bool block(Work work, Deadline deadline);
  bool block_until(Work work, Deadline& deadline);
  std::uint64_t end_of(Work work) const noexcept;
  Statistics::Entry stats_of(Work work) const noexcept;
  Need need_of(Work work) const noexcept;
  std::uint32_t bell_of(Work work) const noexcept;
  const Task* blocker(Work work) const noexcept;
  void inspect(Work work, Deadline& deadline);
  void ask(Work work);
  void look_at_peers(Work work);
  void look_at_other_groups() const;
  void late(const Need& need, double seconds) const;
  std::string missed(const Need& need) const;
  std::string whereabouts(int rank) const;

  std::shared_ptr<Family> family_;
  Group group_;
  Lane lane_;
  Statistics statistics_;
  Streams streams_;
  Algorithm preferred_;
  double split_timeout_;

  std::vector<Task> tasks_{kSlots};
  std::uint64_t submitted_ = 0;           // those in the backlog come behind
  std::uint64_t finished_ = 0;            // all sequences up to here are complete on this rank
  std::uint64_t slots_free_to_ = kSlots;  // sequences up to here may be published
  Need next_slots_;                       // what frees more of them
  std::deque<Waiting> backlog_;
  std::uint32_t splits_ = 0;

  bool closed_ = false;
  std::list<Family::Retired> retired_ =
      std::list<Family::Retired>(1);  // what close() fills in: it must not ask for memory
  std::unordered_map<std::uint64_t, ProgramText> programs_;  // by hash
  std::vector<std::uint64_t> texts_;  // memory for their offsets, reserved for close()
};

// The group of all ranks of a family.
std::unique_ptr<ShmCommunicator> make_world(std::unique_ptr<Memory> memory,
                                            std::unique_ptr<Liveness> liveness, Place place);

// Ranks that are threads of this process, each on the memory node that is given: for tests.
std::vector<std::unique_ptr<Communicator>> make_thread_ranks(int size,
                                                             const std::vector<int>& nodes = {});

}  // namespace ngd::comm::shm
