// SPDX-License-Identifier: Apache-2.0
// The reports of peers that have ended: a peer has failed, or has left in order.
#pragma once

#include <chrono>

#include "comm/mpi/group_context.hpp"
#include "comm/mpi/mailbox.hpp"
#include "comm/mpi/pending_collective.hpp"

namespace ngd::comm::mpi {

// The check functions throw RankLost if a peer has left, and the failure of a peer that has failed.
class PeerReports {
 public:
  using Clock = std::chrono::steady_clock;

  PeerReports(const GroupContext& group, Mailbox& mailbox) : group_(group), mailbox_(mailbox) {}

  // Check the peers that a collective still needs.
  void check_needed(const PendingCollective& work, bool has_headers) const;
  // Check the peer of a send or a receive, and every other peer that has failed since `start`.
  // `is_matched`: this rank has seen the header of the sender.
  void check_pair(int peer, const CallRecord& mine, bool is_matched, Clock::time_point start) const;
  // Check for a failure of any peer.
  void check_all(const CallRecord& mine) const;
  // Wait a short time for a report: it has more facts than the error that shared memory has raised.
  void await(const PendingCollective& work) const;

 private:
  bool has_left_in_order(int peer) const;
  bool has_failed(int peer, Clock::time_point start) const;
  [[noreturn]] void throw_end(int peer, const CallRecord& mine) const;

  const GroupContext& group_;
  Mailbox& mailbox_;
};

}  // namespace ngd::comm::mpi
