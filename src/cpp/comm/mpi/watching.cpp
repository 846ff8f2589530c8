// SPDX-License-Identifier: Apache-2.0
// What a wait hears of ranks that go no further: in its own group, and in the others that the same
// program needs.
#include <algorithm>
#include <chrono>

#include "base/error.hpp"
#include "comm/messages.hpp"
#include "comm/mpi/mpi_communicator.hpp"

namespace ngd::comm::mpi {
namespace {

// A header that is under way comes in that time, and with all headers a collective may end although
// a rank has failed.
constexpr auto kGrace = std::chrono::milliseconds(100);

}  // namespace

// Throws when a rank that is still needed has said that it goes no further. A rank that failed in
// this collective may have sent its header first. It missed a header of a third rank, and I may never
// get that one either.
void MpiCommunicator::check_needed(const Pending& work, bool headers_are_here) {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank() || !mailbox_.ended(peer)) continue;
    const bool ended_here = mailbox_.ended(peer)->header.sequence <= work.header.sequence;
    const bool missed = mailbox_.from(peer).empty() || (ended_here && has_failed(peer, work.start));
    check_not_ended(peer, work.header, headers_are_here ? ended_here : missed);
  }
}

// Whether a peer has failed, and a work that began at `start` has waited in vain since.
bool MpiCommunicator::has_failed(int peer, Clock::time_point start) const {
  if (!mailbox_.ended(peer) || has_left(peer)) return false;
  return Clock::now() - std::max(start, mailbox_.heard_end(peer)) > kGrace;
}

bool MpiCommunicator::has_left(int peer) const {
  return mailbox_.ended(peer) && mailbox_.ended(peer)->header.topic == Topic::Left;
}

void MpiCommunicator::check_not_ended(int peer, const Header& mine, bool needed) {
  if (!needed || !mailbox_.ended(peer)) return;
  const std::string who = world_name(peer);
  if (has_left(peer))
    fail_of(worlds_of({peer}), ErrorKind::RankLost, who,
            " left the group while this rank waited for it in ", describe(mine));
  const ErrorKind kind = mailbox_.ended(peer)->header.error;
  const LastWords last = LastWords::of(*mailbox_.ended(peer));
  if (is_between_ranks(kind))
    fail_of(last.ranks, kind, who, " gave up: ", last.text, "; this rank was in ", describe(mine));
  fail_of(last.ranks, ErrorKind::RemoteRank, who, " failed while this rank was in ", describe(mine),
          ":\n", last.text);
}

// Of a send or a receive. A rank that has left in order has sent all it had to: the data may still be
// on their way. The peer may be silent because it has died, and another rank has failed of that: so
// any failure in the group ends what has no answer yet.
void MpiCommunicator::check_pair(int peer, const Header& mine, bool matched,
                                 Clock::time_point start) {
  check_not_ended(peer, mine, !matched || !has_left(peer));
  for (int other = 0; other < size() && !matched; ++other)
    if (other != rank()) check_not_ended(other, mine, has_failed(other, start));
}

void MpiCommunicator::expect_no_failure(const Header& mine) {
  if (!watched()) return;
  if (family_->failed()) family_->throw_failure(describe(mine));
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank() && !has_left(peer)) check_not_ended(peer, mine, true);
}

// What a rank has said in another group, which the program needs, too.
void MpiCommunicator::fail_with_others(Work work) {
  const bool pair = work.sequence >= Pairs::kFirst;
  try {
    family_->expect_no_failure_beside(*this,
                                      pair ? pairs_.header(work.sequence) : works_.front().header);
  } catch (const Error& error) {
    close_failed(error.kind(), error.what(), error.ranks());
    family_->mark_thrown();
    throw;
  }
}

}  // namespace ngd::comm::mpi
