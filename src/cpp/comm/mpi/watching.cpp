// SPDX-License-Identifier: Apache-2.0
// What a wait hears of ranks that go no further: in its own group, and in the others that the same
// program needs.
#include <algorithm>
#include <chrono>
#include <new>

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
    check_not_ended(peer, work.header.call, headers_are_here ? ended_here : missed);
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

void MpiCommunicator::check_not_ended(int peer, const CallRecord& mine, bool needed) {
  if (!needed || !mailbox_.ended(peer)) return;
  const int world = channel_.world(peer);
  if (has_left(peer))
    fail_of({world}, ErrorKind::RankLost, rank_left(describe(mine), world, is_world()));
  const ErrorKind kind = mailbox_.ended(peer)->header.error;
  const LastWords last = LastWords::of(*mailbox_.ended(peer));
  if (is_between_ranks(kind))
    fail_of(last.ranks, kind, last.text, "\nRank ", world, " reported this; this rank waited in ",
            describe(mine), ".");
  fail_of(last.ranks, ErrorKind::RemoteRank, describe(mine), ": rank ", world, " failed:\n",
          last.text);
}

// Of a send or a receive. A rank that has left in order has sent all it had to: the data may still be
// on their way. The peer may be silent because it has died, and another rank has failed of that: so
// any failure in the group ends what has no answer yet.
void MpiCommunicator::check_pair(int peer, const CallRecord& mine, bool matched,
                                 Clock::time_point start) {
  check_not_ended(peer, mine, !matched || !has_left(peer));
  for (int other = 0; other < size() && !matched; ++other)
    if (other != rank()) check_not_ended(other, mine, has_failed(other, start));
}

void MpiCommunicator::expect_no_failure(const CallRecord& mine) {
  if (!watched()) return;
  if (family_->failed()) family_->throw_failure(describe(mine));
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank() && !has_left(peer)) check_not_ended(peer, mine, true);
}

// Run a call. If it throws, fail the family; later calls throw GroupClosed.
template <class Call>
void MpiCommunicator::or_fail(Call&& call) {
  notify_on_failure(call, [&](const FailureView& failure) {
    close_failed(failure);
    family_->mark_thrown();
  });
}

// What a rank has said in another group, which the program needs, too.
void MpiCommunicator::fail_with_others(Work work) {
  const bool pair = work.sequence >= Pairs::kFirst;
  const CallRecord& mine = pair ? pairs_.call(work.sequence) : works_.front().header.call;
  or_fail([&] { family_->expect_no_failure_beside(*this, mine); });
}

// ---- the deadline

// World ranks.
std::vector<int> MpiCommunicator::awaited_ranks(Work work) const {
  if (work.sequence >= Pairs::kFirst) return {pairs_.peer_of(work.sequence)};
  if (works_.front().transfer) return works_.front().transfer->pending_peers();
  std::vector<int> missing;
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank() && mailbox_.from(peer).empty()) missing.push_back(channel_.world(peer));
  return missing;
}

void MpiCommunicator::Awaited::note(Work work) {
  if (!group_.shortcut_ || group_.is_complete(work)) return;
  try {
    const std::vector<int> ranks = group_.awaited_ranks(work);
    group_.shortcut_->local().note_awaited(ranks.empty() ? -1 : ranks.front());
    noted_ = true;
  } catch (const std::bad_alloc&) {  // the ranks of my host get no note
  }
}

MpiCommunicator::Awaited::~Awaited() {
  if (noted_) group_.shortcut_->local().note_awaited(-1);
}

// A missing rank may wait for another one itself, which ranks of my host publish. Replaces it by
// that one, and returns a line per replacement. A missing rank of my host that waits for no other
// has stopped for certain.
std::vector<std::string> MpiCommunicator::find_culprits(std::vector<int>& missing,
                                                        bool& is_certain) const {
  std::vector<std::string> facts;
  std::vector<int> stopped, others;
  const int me = channel_.world(rank());
  for (int missed : missing) {
    for (int hops = 0; shortcut_ && hops < size(); ++hops) {
      const int awaited = shortcut_->awaited_by(missed);
      if (awaited < 0 || awaited == me) break;
      facts.push_back(concat("rank ", missed, " waits for rank ", awaited, "."));
      missed = awaited;
    }
    const bool is_stopped =
        shortcut_ && shortcut_->is_here(missed) && shortcut_->awaited_by(missed) < 0;
    std::vector<int>& found = is_stopped ? stopped : others;
    if (std::find(found.begin(), found.end(), missed) == found.end()) found.push_back(missed);
  }
  is_certain = !stopped.empty();
  missing = is_certain ? stopped : others;
  std::sort(missing.begin(), missing.end());
  return facts;
}

// Another rank that is certain which one has stopped sends its failure at the same deadline.
void MpiCommunicator::hear_last_words(Work work) {
  if (work.sequence >= Pairs::kFirst || works_.empty()) return;
  or_fail([&] { prefer_last_words(works_.front()); });
}

void MpiCommunicator::fail_timeout(Work work, double timeout_seconds) {
  const bool pair = work.sequence >= Pairs::kFirst;
  const bool has_begun = !pair && works_.front().transfer;
  std::vector<int> missing = awaited_ranks(work);
  const std::vector<std::string> calls = calls_of(missing);
  std::vector<std::string> facts;
  bool is_certain = false;
  if (has_begun) facts = find_culprits(missing, is_certain);
  if (has_begun && !is_certain) hear_last_words(work);
  facts.insert(facts.end(), calls.begin(), calls.end());
  const std::string message = late(describe_awaited(work), missing, has_begun, timeout_seconds,
                                   facts, late_advice(!calls.empty(), 0));
  close_failed(ErrorKind::CollectiveTimeout, message, missing);
  family_->mark_thrown();
  throw Error(ErrorKind::CollectiveTimeout, message, missing);
}

}  // namespace ngd::comm::mpi
