// SPDX-License-Identifier: Apache-2.0
// Waits for works of a group, and finds out why a wait does not end.
//
// A wait advances the works (collectives, sends and receives) of all groups of this rank. It spins,
// yields and sleeps (wait.hpp), and checks its peers before each sleep. Measurements of the cost of
// these checks turn them off (Place::checked). Each of these ends a wait with an error:
//   - a rank has reported a failure, or has called another collective (Family::check_rank, Works);
//   - a rank that this wait needs has left the group, or its process has died (liveness.hpp);
//   - the interrupt callback of the caller returns true;
//   - the deadline has passed.
// guarded.hpp catches the error and calls Family::fail_with(), which writes the failure to this
// rank's record and wakes the peers. They then throw the same error. No later call of this rank
// succeeds.
//
// Another thread can close the group during a wait (monitor.hpp): the wait ends with GroupClosed.
#pragma once

#include <functional>
#include <string>

#include "comm/communicator.hpp"
#include "comm/shm/family.hpp"
#include "comm/shm/works.hpp"
#include "comm/stats.hpp"

namespace ngd::comm::shm {

class Waiter {
 public:
  Waiter(const Member& member, Family& family, const Group& group, const Works& works,
         Statistics& statistics, std::function<bool()> is_interrupted)
      : member_(member),
        family_(family),
        group_(group),
        works_(works),
        statistics_(statistics),
        is_interrupted_(std::move(is_interrupted)) {}

  // Wait until a work (a collective, a send or a receive) is complete. Return false if
  // limits.patience_seconds have passed before that.
  bool wait(Work work, const WaitLimits& limits);
  // Return true if a work (a collective, a send or a receive) is complete, without waiting. Throws
  // the errors of wait().
  bool poll(Work work);

 private:
  // The time limit of a wait. seconds: 0 = no limit. Before each sleep, inspect() sets at_ns and
  // slow_since_ns if they are 0.
  struct Deadline {
    double seconds = 0;
    bool is_error = true;             // false: at the limit, the wait returns false
    std::uint64_t at_ns = 0;          // the time at which the limit ends the wait; 0: not set yet
    std::uint64_t slow_since_ns = 0;  // the time of the first inspect(); 0: no sleep yet
    bool is_published = false;        // peers can read the call of this wait (note_wait)
  };
  // Return the deadline of a wait that begins now. The limit is limits.patience_seconds if it is
  // set, otherwise limits.timeout_seconds.
  static Deadline deadline_of(const WaitLimits& limits);

  // Wait until a work is complete, and return true. Return false if the deadline passes before that
  // and is not an error (Deadline::is_error).
  bool block(Work work, Deadline& deadline);
  // Sleep until a peer wakes this rank, but at most kSleepNs or until the deadline. Return without
  // a sleep if any work has made progress, or if another thread wants the lock.
  void sleep(Work work, const Deadline& deadline);
  std::uint32_t bell_of(Work work) const noexcept;
  // Called before each sleep: throw an error if this wait must end (head of this file). If the wait
  // is long, publish this rank's call, so that error messages of peers can name it.
  void inspect(Work work, Deadline& deadline);
  void publish_wait(Work work, Deadline& deadline, std::uint64_t now);
  // Run the interrupt callback without the lock. Throw Interrupted if it returns true, and
  // GroupClosed if the group is closed afterwards.
  void ask_caller(Work work);
  // Throw the failure that a rank has reported. Throw RankLost if a rank that this work needs has
  // left the group or died.
  void look_at_peers(Work work);
  void look_at_other_groups() const;
  void check_still_open(Work work) const;
  // Throw CollectiveTimeout if ranks have not met the need; do nothing if all have met it.
  // `seconds`: the timeout, for the message.
  void throw_if_late(const Need& need, double seconds) const;
  std::string last_call_of(int rank) const;

  const Member& member_;
  Family& family_;
  const Group& group_;
  const Works& works_;
  Statistics& statistics_;
  std::function<bool()> is_interrupted_;
};

}  // namespace ngd::comm::shm
