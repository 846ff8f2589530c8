// SPDX-License-Identifier: Apache-2.0
// The collectives of a group that this rank has submitted, in the order of submission.
//
// A collective needs a slot, in which it is published to the peers. There are kSlots slots, and
// collective number s uses the slot of collective s - kSlots again. The slot is free when all ranks
// have finished collective s - kSlots. Until then, collective s waits in the backlog.
//
// submit() never waits for a slot, because that could be a deadlock: a peer may be unable to finish
// its collectives before this rank has submitted a later one.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/shm/program_texts.hpp"
#include "comm/shm/task.hpp"
#include "comm/stats.hpp"

namespace ngd::comm::shm {

class SlotQueue {
 public:
  SlotQueue(Group& group, ProgramTexts& texts, bool checked);

  // Start a collective if it has a free slot (the record that the peers read); otherwise add it to
  // the backlog. Return the collective's number in the group: 1 for the first one.
  std::uint64_t submit(const Collective& collective, Statistics::Entry stats);
  // Start the collectives of the backlog whose slots (the records that the peers read) are free
  // now. Return the number of collectives that were started.
  int start_from_backlog();
  // Return false if the next collective certainly has a free slot (the record that the peers read).
  // Return true if a peer may still use the slot: has_free_slot() then reads how many collectives
  // the peers have finished.
  bool may_lack_slot() const noexcept { return submitted_ >= slots_free_to_; }

  // Return the number of the last collective that was published in a slot, where the peers read it.
  // Collectives in the backlog, which wait for a slot, have higher numbers.
  std::uint64_t submitted() const noexcept { return submitted_; }
  // Return the largest n for which the collectives 1 to n are complete on this rank.
  std::uint64_t finished() const noexcept { return finished_; }
  // Set finished_ to the largest n for which the collectives 1 to n are complete on this rank.
  // Report finished_ to the peers once per kReportInterval collectives.
  void finish() {
    const std::uint64_t before = finished_;
    while (finished_ < submitted_ && task(finished_ + 1).is_complete) ++finished_;
    if (finished_ != before) report_finished(before);
  }

  // Return the Task object of a published collective. The collective with number sequence + kSlots
  // will use the same object.
  Task& task(std::uint64_t sequence) noexcept { return tasks_[sequence % kSlots]; }
  const Task& task(std::uint64_t sequence) const noexcept { return tasks_[sequence % kSlots]; }
  // Return true if a collective is complete on this rank. Return false if it is in the backlog,
  // where it waits for a slot.
  bool is_complete(std::uint64_t sequence) const noexcept {
    return sequence <= finished_ || (sequence <= submitted_ && task(sequence).is_complete);
  }

  // Return true if a collective was submitted, including the backlog and complete collectives.
  bool is_known(std::uint64_t sequence) const noexcept {
    return sequence >= 1 && sequence <= submitted_ + backlog_.size();
  }
  bool has_backlog() const noexcept { return !backlog_.empty(); }
  // Return true if a submitted collective is not published yet.
  bool is_in_backlog(std::uint64_t sequence) const noexcept { return sequence > submitted_; }
  // Return a collective in the backlog. Its pointers are valid until the backlog changes.
  Collective backlogged(std::uint64_t sequence) const noexcept {
    return backlog_[sequence - submitted_ - 1].view();
  }
  // Return the statistics entry of a collective in the backlog, where it waits for a slot.
  Statistics::Entry backlogged_stats(std::uint64_t sequence) const noexcept {
    return backlog_[sequence - submitted_ - 1].stats;
  }
  // Return the need (the condition to wait for) of the oldest collective in the backlog: its slot,
  // a record that the peers read, must be free. The slot is free when all ranks have reported that
  // they have finished the collective that used it before.
  const Need& need_of_slot() const noexcept { return next_slots_; }
  // Return how many submitted collectives have numbers above finished(), including the backlog.
  // Some of them can be complete: finished() stops before the first incomplete one.
  std::uint64_t in_flight() const noexcept { return submitted_ - finished_ + backlog_.size(); }

 private:
  // A collective in the backlog (it waits for a free slot, the record that the peers read), with
  // copies of the arrays that its caller may free.
  struct Backlogged {
    Collective collective;
    std::vector<std::uint64_t> counts, receive_counts, layout_numbers;
    Layout layout;
    char site[kSiteBytes];
    Statistics::Entry stats;
    ProgramText program;
    std::uint64_t since_ns;

    // Return the collective, with pointers to the copies in this entry. Its `program` is null.
    Collective view() const noexcept;
  };

  // Report finished_ to the peers if it has reached or passed a multiple of kReportInterval since
  // its value was `before`.
  void report_finished(std::uint64_t before);
  bool has_free_slot();
  // Append a collective to the backlog. Nothing is published yet.
  void add_to_backlog(const Collective& collective, Statistics::Entry stats,
                      const ProgramText& program);
  // Set up the task of the next collective, whose slot must be free, and publish it. `waited_ns`:
  // the time that the collective was in the backlog.
  void start(const Collective& collective, Statistics::Entry stats, const ProgramText& program,
             std::uint64_t waited_ns);
  // Copy the call to its task. Set task.need, the condition to wait for: all ranks have published
  // the collective.
  void fill_in(Task& task, const Collective& collective);
  // Write the call and its operands to this rank's slot. Then raise the slot's flag `published`.
  void publish(Task& task, const Collective& collective, const ProgramText& program);
  // Write the kind of a layout and at most kLayoutNumbers of its numbers to shared memory.
  void publish_layout(Slot& slot, std::uint64_t sequence, const Layout& layout);
  void publish_operands(Task& task, Slot& slot, const Collective& collective);

  Group& group_;
  ProgramTexts& texts_;
  bool checked_;
  Algorithm preferred_;
  std::vector<Task> tasks_{kSlots};
  // The number of the last collective that was started, that is, published in a slot. Collectives
  // in the backlog have higher numbers.
  std::uint64_t submitted_ = 0;
  std::uint64_t finished_ = 0;
  std::uint64_t slots_free_to_ = kSlots;  // collectives up to this number may be published
  Need next_slots_;                       // if this condition is met, more slots (records) are free
  std::deque<Backlogged> backlog_;
};

}  // namespace ngd::comm::shm
