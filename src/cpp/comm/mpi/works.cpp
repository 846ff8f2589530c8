// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/works.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/error.hpp"
#include "comm/mpi/choose.hpp"
#include "comm/mpi/small.hpp"

namespace ngd::comm::mpi {
namespace {

constexpr int kLooksBeforeData = 4;

}  // namespace

Works::Works(const GroupContext& group, Headers& headers, const PeerReports& reports)
    : group_(group),
      headers_(headers),
      reports_(reports),
      preferred_(preferred_algorithm()),
      statistics_(group.size()),
      pairs_(group.ranks, statistics_) {}

Work Works::submit(const Collective& collective) {
  if (between_two(collective.kind)) {
    const Work work{pairs_.submit(headers_.mailbox(), collective)};
    group_.family->submitted();
    return work;
  }
  PendingCollective work;
  work.stats = statistics_.entry_of(collective);
  work.start = std::chrono::steady_clock::now();
  prepare(work, collective, group_.ranks, preferred_, submitted_ + 1);
  works_.push_back(std::move(work));
  headers_.post(works_.back());
  // A small collective does not need the progress thread: its data were posted with its header, and
  // the wait of its caller completes it. The data of other collectives should move even while no
  // caller waits, so submitted() wakes the progress thread.
  if (!travels_with_header(collective, group_.size())) group_.family->submitted();
  return {++submitted_};
}

// ---- progress

void Works::advance() {
  advance_collectives();
  pairs_.progress(headers_.mailbox(),
                  [this](int peer, const CallRecord& mine, bool is_matched, auto start) {
                    reports_.check_pair(peer, mine, is_matched, start);
                  });
}

void Works::advance_collectives() {
  for (std::size_t i = 0; i < works_.size() && i < kActive; ++i) {
    PendingCollective& work = works_[i];
    if (work.complete) continue;
    if (work.received.empty() && !headers_.collect(work)) {
      reports_.check_needed(work, false);
      break;
    }
    work.complete = advance(work, static_cast<int>((completed_ + i) % kActive));
    if (!work.complete) continue;
    ++moves_;
    count(work);
  }
  while (!works_.empty() && works_.front().complete) {
    works_.pop_front();
    ++completed_;
  }
}

bool Works::advance(PendingCollective& work, int slot) {
  if (!work.transfer && travels_with_header(work.collective, group_.size())) {
    finish_with_headers(work);
    return true;
  }
  if (!work.transfer) begin(work, slot);
  return advance_transfer(work);
}

void Works::finish_with_headers(PendingCollective& work) const {
  std::vector<const std::byte*> contributions(static_cast<std::size_t>(group_.size()));
  for (std::size_t r = 0; r < contributions.size(); ++r)
    contributions[r] = work.received[r].payload.data();
  contributions[static_cast<std::size_t>(group_.rank())] = work.payload.data();
  finish_small(work.collective, group_.rank(), group_.size(), contributions);
}

// Receive the reports of failures that have arrived, and check them before any data move: if MPI
// has begun to send data to a failed rank, it cannot cancel the message. The report of a peer may
// arrive after other messages of that peer, and one call of progress() receives at most one message
// from each peer. So call progress() kLooksBeforeData times.
void Works::begin(PendingCollective& work, int slot) const {
  for (int look = 0; look < kLooksBeforeData; ++look) headers_.mailbox().progress();
  reports_.check_needed(work, true);
  const int tag = group_.ranks.first_tag + kFirstDataTag + slot * kTagsPerCollective;
  work.transfer = choose_transfer(group_.ranks, group_.hosts.get(), tag, work.collective);
}

bool Works::advance_transfer(PendingCollective& work) {
  const std::uint64_t steps_before = work.transfer->steps();
  bool is_finished = false;
  try {
    is_finished = work.transfer->advance();
  } catch (const Unreachable&) {
    throw;
  } catch (const Error&) {
    // The shared-memory group of the ranks of this host has failed. If a peer reports the cause in
    // time, await() throws the reported error, which has more facts.
    reports_.await(work);
    throw;
  }
  moves_ += work.transfer->steps() - steps_before;
  if (!is_finished) reports_.check_needed(work, true);
  return is_finished;
}

void Works::count(const PendingCollective& work) {
  const std::chrono::nanoseconds spent = std::chrono::steady_clock::now() - work.start;
  const int last = work.last_missing < 0 ? group_.rank() : work.last_missing;
  statistics_.add(work.stats, larger_side_bytes(work.collective, group_.rank(), group_.size()),
                  static_cast<std::uint64_t>(spent.count()), last);
}

void Works::drop() noexcept {
  works_.clear();
  pairs_.abandon();
}

// ---- state

bool Works::is_complete(Work work) const {
  if (is_pair(work)) {
    check(work.sequence <= pairs_.last(), "a send or a receive that was never submitted");
    return group_.state == GroupContext::State::Open && pairs_.complete(work.sequence);
  }
  check(work.sequence <= submitted_, "collective ", work.sequence, " of ", submitted_);
  if (work.sequence <= completed_) return true;
  const std::size_t index = work.sequence - completed_ - 1;
  return index < works_.size() && works_[index].complete;
}

bool Works::moves_data() const noexcept {
  return !pairs_.idle() ||
         std::any_of(works_.begin(), works_.end(),
                     [](const PendingCollective& work) { return work.transfer != nullptr; });
}

const CallRecord& Works::call_of(Work work) const {
  return is_pair(work) ? pairs_.call(work.sequence) : works_.front().header.call;
}

bool Works::has_begun(Work work) const {
  return !is_pair(work) && works_.front().transfer != nullptr;
}

std::vector<int> Works::awaited_ranks(Work work) const {
  if (is_pair(work)) return {pairs_.peer_of(work.sequence)};
  if (has_begun(work)) return works_.front().transfer->pending_peers();
  return headers_.missing();
}

Statistics::Entry Works::stats_of(Work work) const {
  if (is_pair(work)) return pairs_.stats_of(work.sequence);
  return works_[work.sequence - completed_ - 1].stats;
}

}  // namespace ngd::comm::mpi
