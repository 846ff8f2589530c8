// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/mpi_communicator.hpp"

#include <chrono>
#include <mutex>
#include <new>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "comm/messages.hpp"
#include "comm/mpi/backoff.hpp"
#include "comm/mpi/groups.hpp"
#include "comm/mpi/long_wait.hpp"

namespace ngd::comm::mpi {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kAlignment = 64;
constexpr auto kBetweenLooks =
    std::chrono::milliseconds(100);  // between two checks of other groups and of interrupts

std::uint64_t nanoseconds(Clock::duration time) {
  return static_cast<std::uint64_t>(std::chrono::nanoseconds(time).count());
}

// Return the set of all ranks of the MPI communicator. Its first message tag is 0.
RankSet all_ranks(const Endpoint& endpoint) {
  RankSet ranks{endpoint.comm, std::vector<int>(static_cast<std::size_t>(endpoint.size)),
                endpoint.rank, 0};
  std::iota(ranks.members.begin(), ranks.members.end(), 0);
  return ranks;
}

}  // namespace

MpiCommunicator::MpiCommunicator(std::shared_ptr<Family> family)
    : MpiCommunicator(family, all_ranks(family->endpoint())) {}

MpiCommunicator::MpiCommunicator(std::shared_ptr<Family> family, RankSet ranks)
    : Communicator({"mpi", ranks.rank, ranks.size(), family->endpoint().local_rank,
                    family->endpoint().local_size}),
      group_{std::move(family), std::move(ranks), nullptr},
      headers_(group_, *computations()),
      reports_(group_, headers_.mailbox()),
      works_(group_, headers_, reports_),
      teardown_(group_, headers_.mailbox()) {
  const std::lock_guard lock(group_.family->mutex());
  group_.family->add(*this);
}

void MpiCommunicator::use(std::unique_ptr<HostLayer> hosts) {
  const std::lock_guard lock(group_.family->mutex());
  group_.hosts = std::move(hosts);
  if (!group_.hosts) return;
  const Communicator& local = group_.hosts->local();
  set_membership({group_.hosts->name(), rank(), size(), local.rank(), local.size()});
}

void MpiCommunicator::check_not_child(const char* call) const {
  if (in_child()) fail(ErrorKind::GroupClosed, call, ": ", kForkedChild);
}

std::uint64_t MpiCommunicator::first_incomplete() const {
  const std::lock_guard lock(group_.family->mutex());
  return works_.first_incomplete();
}

std::vector<CallStats> MpiCommunicator::stats() const {
  // Do not lock in a forked child: if a thread of the parent held the lock, nothing releases it.
  if (in_child()) return {};
  const std::lock_guard lock(group_.family->mutex());
  return works_.statistics().report();
}

std::optional<std::unique_ptr<Communicator>> MpiCommunicator::try_split(int color, int key) {
  return try_split_group(*this, color, key);
}

// ---- works

std::optional<Work> MpiCommunicator::try_submit(const Collective& collective) {
  check_not_child(name_of(collective.kind).data());
  const Entry entry(*this);
  if (!entry) return std::nullopt;
  const std::lock_guard lock(group_.family->mutex());
  if (group_.state != State::Open || group_.family->failed())
    group_.require_open(describe(collective).c_str());
  validate(collective, rank(), size());
  try {
    return works_.submit(collective);
  } catch (const Error& error) {
    group_.family->fail(error.kind(), concat(describe(collective), ": ", error.what()),
                        error.ranks());
    group_.require_open(describe(collective).c_str());
    throw;
  } catch (const std::exception&) {
    group_.family->fail(failure_in_flight());
    group_.family->mark_thrown();
    throw;
  }
}

// The timeout counts from the last time at which data moved. So a long transfer does not time out
// while its data move.
Progress MpiCommunicator::try_wait(Work work, const WaitLimits& limits) {
  const char* call = limits.has_patience() ? "wait_for" : "wait";
  check_not_child(call);
  const Entry entry(*this);
  if (!entry) return Progress::Busy;
  const Family::Waiting waiting(*group_.family);
  LongWait long_wait(group_, headers_, reports_, works_, work);
  const std::chrono::duration<double> limit(limits.timeout_seconds);
  const auto start = Clock::now();
  Backoff backoff(local_size());
  std::uint64_t moves_seen = 0;
  std::optional<Statistics::Entry> stats_entry;
  auto last_move = start;
  auto next_look = start + kBetweenLooks;
  while (true) {
    auto now = start;
    {
      const std::lock_guard lock(group_.family->mutex());
      if (group_.state == State::Open) group_.family->progress();
      if (works_.is_complete(work)) {
        if (stats_entry)
          works_.statistics().add_waited(*stats_entry, nanoseconds(Clock::now() - start));
        return Progress::Done;
      }
      group_.require_open(call);
      stats_entry = works_.stats_of(work);
      now = Clock::now();
      if (moves() != moves_seen) {
        moves_seen = moves();
        last_move = now;
        backoff.reset();
      }
      if (limits.timeout_seconds > 0 && now - last_move > limit)
        long_wait.throw_timeout(limits.timeout_seconds);
      if (now >= next_look && is_watched()) check_other_groups(work);
      if (now >= next_look) long_wait.publish();
    }
    if (std::chrono::duration<double>(now - start).count() >= limits.patience_seconds)
      return Progress::NotYet;
    backoff.pause();
    if (now < next_look) continue;
    next_look = now + kBetweenLooks;
    if (is_interrupted()) throw_interrupted(work);
  }
}

// Throw Interrupted because the interrupt callback has returned true: it has set an exception in
// Python, which must be raised. If the work is complete, its result is lost, but the group stays
// usable. If the work is not complete, the world group and all groups made from it fail.
void MpiCommunicator::throw_interrupted(Work work) {
  const std::lock_guard lock(group_.family->mutex());
  group_.require_open("wait");
  if (works_.is_complete(work)) throw Error(ErrorKind::Interrupted, "interrupted");
  const std::string what = concat("interrupted in ", describe(works_.call_of(work)));
  group_.family->fail(ErrorKind::Interrupted, what, {});
  group_.family->mark_thrown();
  throw Error(ErrorKind::Interrupted, what);
}

// A compiled step that uses several groups watches all of them for failures while it runs
// (Communicator::watch). If a rank has reported a failure in another watched group, fail the world
// group and all groups made from it, and throw that failure. The step cannot complete without the
// failed group, so this wait must end.
void MpiCommunicator::check_other_groups(Work work) {
  Family& family = *group_.family;
  family.or_fail([&] { family.expect_no_failure_beside(*this, works_.call_of(work)); });
}

// ---- as a member of the family, with the lock held

bool MpiCommunicator::progress() noexcept {
  if (group_.state != State::Open) return false;
  try {
    headers_.mailbox().progress();
    works_.advance();
  } catch (const Unreachable& lost) {
    fail_unreachable(lost);
  } catch (const std::exception&) {
    group_.family->fail(failure_in_flight());
  }
  return !works_.idle();
}

void MpiCommunicator::fail_unreachable(const Unreachable& lost) noexcept {
  std::string message;
  try {
    if (const PendingCollective* work = works_.front())
      message = concat(describe(work->header.call), ": ", lost.what());
  } catch (const std::bad_alloc&) {  // out of memory: the message does not name the collective
  }
  group_.family->fail(lost.kind(), message.empty() ? lost.what() : message, lost.ranks());
}

void MpiCommunicator::send_failure(const Failure& failure) noexcept {
  if (group_.state != State::Open) return;
  group_.state = State::Failed;
  teardown_.send_failure(failure, works_.first_incomplete());
  // Fail the host group (the ranks of this host) too. A transfer may have submitted collectives to
  // it. Their operands belong to the caller, so no collective may use them after the transfer has
  // ended.
  if (group_.hosts) group_.hosts->fail(failure);
}

bool MpiCommunicator::has_sent_failure() {
  return group_.state != State::Failed || teardown_.has_sent_failure(moves_data());
}

void MpiCommunicator::expect_no_failure(const CallRecord& mine) {
  if (!is_watched()) return;
  if (group_.family->failed()) group_.family->throw_failure(describe(mine));
  reports_.check_all(mine);
}

// ---- the end

void MpiCommunicator::give_up(ErrorKind kind, std::string_view why,
                              std::span<const int> ranks) noexcept {
  if (in_child()) return;
  const std::lock_guard lock(group_.family->mutex());
  if (group_.state == State::Closed) return;
  group_.family->fail(is_between_ranks(kind) ? kind : ErrorKind::RemoteRank, why, ranks);
  group_.family->mark_thrown();
}

void MpiCommunicator::close() noexcept {
  if (in_child()) return;
  const std::lock_guard lock(group_.family->mutex());
  if (group_.state == State::Closed) return;
  const bool has_failed = group_.state == State::Failed;
  group_.state = State::Closed;
  group_.family->remove(*this);
  if (library().finalized()) return;
  teardown_.leave(has_failed, works_.first_incomplete());
  works_.drop();
  if (group_.hosts) group_.hosts->local().close();
  teardown_.finish();
}

// ---- memory

SharedBlock MpiCommunicator::allocate(std::size_t bytes) {
  check_not_child("memory of a group");
  if (group_.hosts) {
    const std::lock_guard lock(group_.family->mutex());
    return group_.hosts->local().allocate(bytes);
  }
  void* data = ::operator new(bytes, std::align_val_t{kAlignment}, std::nothrow);
  if (data == nullptr) fail(ErrorKind::OutOfMemory, "no memory for ", bytes, " bytes");
  return {data, bytes};
}

// Release memory that allocate() has returned. Do not free the memory if MPI may still use it after
// a failure.
void MpiCommunicator::release(SharedBlock block) noexcept {
  if (left_to_mpi()) return;
  if (group_.hosts) {
    if (in_child()) return;
    const std::lock_guard lock(group_.family->mutex());
    group_.hosts->local().release(block);
    return;
  }
  ::operator delete(block.data, std::align_val_t{kAlignment});
}

}  // namespace ngd::comm::mpi
