// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/peer_reports.hpp"

#include <algorithm>
#include <thread>

#include "comm/messages.hpp"

namespace ngd::comm::mpi {
namespace {

// After a peer has failed, the time that a collective, send or receive still waits for missing
// headers. A small collective whose headers all arrive completes although a rank has failed.
constexpr auto kGrace = std::chrono::milliseconds(100);
// The time to wait for the report of a failed peer.
constexpr auto kReportTime = std::chrono::milliseconds(200);

}  // namespace

// If all headers have arrived, throw if a peer has ended in this collective or before it.
// Otherwise: the messages of a peer arrive in order. So if a peer has ended and its header has not
// arrived, the header will never arrive: throw at once. If a peer has sent its header and then
// failed in this collective or before it, wait for the headers of the other ranks for kGrace, then
// throw. The peer may have failed because the header of a third rank was missing, and that header
// may never arrive here either.
void PeerReports::check_needed(const PendingCollective& work, bool has_headers) const {
  for (int peer = 0; peer < group_.size(); ++peer) {
    if (peer == group_.rank() || !mailbox_.ended(peer)) continue;
    const bool ended_here = mailbox_.ended(peer)->header.sequence <= work.header.sequence;
    const bool missed = mailbox_.from(peer).empty() || (ended_here && has_failed(peer, work.start));
    if (has_headers ? ended_here : missed) throw_end(peer, work.header.call);
  }
}

// Return true if a peer has failed, and more than kGrace has passed since the report of the failure
// arrived and since `start`, the time at which a work was submitted. So a work that is submitted
// after the report waits for kGrace too.
bool PeerReports::has_failed(int peer, Clock::time_point start) const {
  if (!mailbox_.ended(peer) || has_left_in_order(peer)) return false;
  return Clock::now() - std::max(start, mailbox_.ended_at(peer)) > kGrace;
}

bool PeerReports::has_left_in_order(int peer) const {
  return mailbox_.ended(peer) && mailbox_.ended(peer)->header.topic == Topic::Left;
}

void PeerReports::throw_end(int peer, const CallRecord& mine) const {
  const int world = group_.world(peer);
  if (has_left_in_order(peer))
    fail_of({world}, ErrorKind::RankLost, rank_left(describe(mine), world, group_.is_world()));
  const Failure failure = Failure::unpack(*mailbox_.ended(peer));
  if (is_between_ranks(failure.kind))
    fail_of(failure.ranks, failure.kind, failure.text, "\nRank ", world,
            " reported this; this rank waited in ", describe(mine), ".");
  fail_of(failure.ranks, ErrorKind::RemoteRank, describe(mine), ": rank ", world, " failed:\n",
          failure.text);
}

// A send or a receive whose header was matched continues if its peer has left without a failure,
// because the data may still arrive. A send or a receive without a match also ends if any other
// rank of the group has failed: its own peer may have died without a report, and that may be the
// reason why the other rank failed.
void PeerReports::check_pair(int peer, const CallRecord& mine, bool is_matched,
                             Clock::time_point start) const {
  if (mailbox_.ended(peer) && !(is_matched && has_left_in_order(peer))) throw_end(peer, mine);
  for (int other = 0; other < group_.size() && !is_matched; ++other)
    if (other != group_.rank() && has_failed(other, start)) throw_end(other, mine);
}

void PeerReports::check_all(const CallRecord& mine) const {
  for (int peer = 0; peer < group_.size(); ++peer)
    if (peer != group_.rank() && mailbox_.ended(peer) && !has_left_in_order(peer))
      throw_end(peer, mine);
}

void PeerReports::await(const PendingCollective& work) const {
  const auto limit = Clock::now() + kReportTime;
  while (Clock::now() < limit) {
    mailbox_.progress();
    check_needed(work, true);
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

}  // namespace ngd::comm::mpi
