// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/peer_reports.hpp"

#include <algorithm>
#include <thread>

#include "comm/messages.hpp"

namespace ngd::comm::mpi {
namespace {

// The time that a collective, send or receive still waits, after a peer has failed, for missing
// headers (the messages that announce a call). A small collective completes if all headers arrive
// within this time.
constexpr auto kGrace = std::chrono::milliseconds(100);
// The time to wait for the report of a failed peer.
constexpr auto kReportTime = std::chrono::milliseconds(200);

}  // namespace

// Throw if this collective cannot complete because a peer has ended (it has failed, or has left the
// group). The report of a peer has the number of the first collective that the peer will not
// complete. A header is the message with which a peer announces a collective. There are three
// cases.
//
// All headers have arrived: throw if a peer that has ended will not complete this collective.
//
// A header is missing, and its sender has ended: throw at once. The messages of a peer arrive in
// order, so the header will never arrive.
//
// A header is missing, and a peer whose header has arrived has failed and will not complete this
// collective: throw after kGrace. The peer may have failed because it did not get the missing
// header, and this rank may never get it either.
void PeerReports::check_needed(const PendingCollective& work, bool has_headers) const {
  for (int peer = 0; peer < group_.size(); ++peer) {
    if (peer == group_.rank() || !mailbox_.ended(peer)) continue;
    const bool ended_here = mailbox_.ended(peer)->header.sequence <= work.header.sequence;
    const bool missed = mailbox_.from(peer).empty() || (ended_here && has_failed(peer, work.start));
    if (has_headers ? ended_here : missed) throw_end(peer, work.header.call);
  }
}

// Return true if a peer has failed, and more than kGrace has passed since its report arrived and
// since `start`, the time at which a collective, send or receive was submitted.
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

// A receive whose header has arrived (`is_matched`) continues if its peer has left without a
// failure, because the data may still arrive. If `is_matched` is false, the send or receive also
// fails when any other rank of the group has failed. The reason: the peer may have died without a
// report, and its death may have caused the failure of the other rank.
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
