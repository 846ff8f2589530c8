// SPDX-License-Identifier: Apache-2.0
// The state of the works of a group. A work is a collective, a send or a receive. The collectives
// of a group have the same numbers on all its ranks, in the order of submission. Sends and receives
// have numbers of their own (letters.hpp).
#pragma once

#include <string>

#include "comm/communicator.hpp"
#include "comm/shm/group.hpp"
#include "comm/shm/letters.hpp"
#include "comm/shm/slot_queue.hpp"

namespace ngd::comm::shm {

class Works {
 public:
  Works(const Group& group, const SlotQueue& queue, const Letters& letters)
      : group_(group), queue_(queue), letters_(letters) {}

  bool is_complete(Work work) const noexcept {
    return is_letter(work) ? letters_.is_complete(work.sequence)
                           : queue_.is_complete(work.sequence);
  }
  // Return the number of pending works, including the backlog (SlotQueue::in_flight).
  std::uint64_t in_flight() const noexcept { return queue_.in_flight() + letters_.in_flight(); }
  // Throw Internal if no collective, send or receive with this number was ever submitted.
  void check_known(Work work) const;
  // Return the statistics entry of a pending work (a collective, a send or a receive).
  Statistics::Entry stats_of(Work work) const noexcept;
  // Return the time at which a complete work ended, for the statistics. The present time could be
  // too late, because the waiting thread may have lost its core after the work ended. For a
  // collective, return the time that was noted at its end, or the present time if its Task object
  // already serves a later collective. For a send or a receive, return the time at which the last
  // of all sends and receives was completed.
  std::uint64_t end_of(Work work) const noexcept;

  // Return the need (the condition to wait for) of a pending collective, send or receive.
  Need need_of(Work work) const noexcept;
  // Return the only rank, as its rank in the world, that must wake a thread that waits for this
  // work and for nothing else. Return -1 if several ranks may have to wake the thread.
  int only_awaited_rank(Work work) const noexcept;

  // These functions return texts for error messages:
  //   describe(work)        the call of a work; "wait" if the call is not known any more
  //   describe_need(need)   the call of this rank that waits for the need (a condition on flags of
  //                         other ranks)
  //   name_of(work)         the name of the call of a work, even if the group is closed
  std::string describe(Work work) const;
  std::string describe_need(const Need& need) const;
  std::string name_of(Work work) const;
  // Throw CollectiveMismatch if a rank has published another collective than this rank, even if
  // other ranks have not arrived: the absence of a third rank must not hide a mismatch.
  void check_calls() const;

 private:
  // Return true for a send or receive, and false for a collective.
  static bool is_letter(Work work) noexcept { return (work.sequence & kLetterBit) != 0; }
  // Return true for a collective that is not published yet. Sends and receives have no backlog.
  bool is_in_backlog(Work work) const noexcept {
    return !is_letter(work) && queue_.is_in_backlog(work.sequence);
  }
  const Task* blocker(Work work) const noexcept;

  const Group& group_;
  const SlotQueue& queue_;
  const Letters& letters_;
};

}  // namespace ngd::comm::shm
