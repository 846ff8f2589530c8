// SPDX-License-Identifier: Apache-2.0
// The reports of peers that have ended: a peer has failed, or has left without a failure.
#pragma once

#include <chrono>

#include "comm/mpi/group_context.hpp"
#include "comm/mpi/mailbox.hpp"
#include "comm/mpi/pending_collective.hpp"

namespace ngd::comm::mpi {

// The reports of peers that have ended. The check functions throw RankLost if a peer has left, and
// otherwise the failure that the peer has reported.
class PeerReports {
 public:
  using Clock = std::chrono::steady_clock;

  PeerReports(const GroupContext& group, Mailbox& mailbox) : group_(group), mailbox_(mailbox) {}

  // Throw if a peer that the collective still needs has ended. `has_headers`: the headers of all
  // peers have arrived.
  void check_needed(const PendingCollective& work, bool has_headers) const;
  // Throw if the peer of a send or a receive has failed or has left. `is_matched` is true if this
  // rank receives and the sender's header has arrived. Then do not throw if the peer has left
  // without a failure. If `is_matched` is false, also throw if any other rank has failed, but only
  // when 100 ms have passed since `start` and since the report of that failure arrived.
  void check_pair(int peer, const CallRecord& mine, bool is_matched, Clock::time_point start) const;
  // Throw if any peer has failed. `mine` is the call in which this rank waits, maybe in another
  // group; the error message shows it.
  void check_all(const CallRecord& mine) const;
  // Wait up to 200 ms for the report of a peer that will not complete the collective `work`,
  // because it has failed or left. Throw the error of the report. If no such report arrives,
  // return. The caller then throws its own error, which has fewer facts about the cause.
  void await(const PendingCollective& work) const;

 private:
  // Return true if the peer has left the group without a failure.
  bool has_left_in_order(int peer) const;
  bool has_failed(int peer, Clock::time_point start) const;
  // Throw the error for a peer that has failed or left the group: RankLost if it has left without a
  // failure, otherwise the failure that it has reported.
  [[noreturn]] void throw_end(int peer, const CallRecord& mine) const;

  const GroupContext& group_;
  Mailbox& mailbox_;
};

}  // namespace ngd::comm::mpi
