// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/peer_reports.hpp"

#include <algorithm>
#include <thread>

#include "comm/messages.hpp"

namespace ngd::comm::mpi {
namespace {

// The time to wait for the header that a rank may have sent before it failed. If the headers of all
// ranks arrive, a collective may complete although a rank has failed.
constexpr auto kGrace = std::chrono::milliseconds(100);
// The time to wait for the report of a failed peer.
constexpr auto kReportTime = std::chrono::milliseconds(200);

}  // namespace

// A rank that has failed in this collective may have sent its header before that, so wait for its
// header for kGrace. It may have failed because the header of a third rank was missing; that header
// may never arrive at this rank either.
void PeerReports::check_needed(const PendingCollective& work, bool has_headers) const {
  for (int peer = 0; peer < group_.size(); ++peer) {
    if (peer == group_.rank() || !mailbox_.ended(peer)) continue;
    const bool ended_here = mailbox_.ended(peer)->header.sequence <= work.header.sequence;
    const bool missed = mailbox_.from(peer).empty() || (ended_here && has_failed(peer, work.start));
    if (has_headers ? ended_here : missed) throw_end(peer, work.header.call);
  }
}

// Return true if a peer has failed, and more than kGrace has passed both since `start`, the begin
// of a work, and since the report of the failure arrived.
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
// because the data may still arrive. Without a match, the failure of any rank of the group ends the
// send or receive. Its own peer may have died without a report, and another rank may have failed
// because of that.
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
