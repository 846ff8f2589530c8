// SPDX-License-Identifier: Apache-2.0
#include "comm/hierarchical/local_group.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "comm/hierarchical/hosts.hpp"
#include "comm/messages.hpp"
#include "comm/mpi/backoff.hpp"
#include "comm/mpi/process.hpp"

namespace ngd::comm::hierarchical {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

namespace {

// the time between two calls of check_other_groups() in await()
constexpr auto kBetweenLooks = std::chrono::milliseconds(100);

}  // namespace

LocalGroup::LocalGroup(std::shared_ptr<mpi::Family> family, std::unique_ptr<Communicator> inner)
    : Communicator(inner->membership(), inner->computations()),
      family_(std::move(family)),
      inner_(std::move(inner)) {
  inner_->set_interrupt([this] { return should_end_wait(); });
  const std::lock_guard lock(family_->mutex());
  family_->add(*this);
}

LocalGroup::~LocalGroup() {
  close();
  release_or_keep(inner_);
}

template <class Call>
auto LocalGroup::locked(const char* name, Call&& call) {
  std::unique_lock lock(family_->mutex());
  active_lock_ = &lock;
  const auto call_locked = [&] {
    if (family_->failed()) family_->throw_failure(name);
    return call();
  };
  return notify_on_failure(call_locked, [&](const FailureView& failure) { report(failure, name); });
}

// Handle an error of the inner group (over shared memory). The caller, locked(), holds the mutex of
// family_ (all groups that use the same MPI communicator). If the error has closed the inner group,
// make family_ fail, which notifies the ranks of other hosts. If the inner group was closed because
// family_ had failed, throw the failure of family_ instead.
void LocalGroup::report(const FailureView& failure, const char* call) {
  if (in_child()) return;
  const bool is_closed = failure.kind == ErrorKind::GroupClosed;
  if (is_closed && family_->failed()) family_->throw_failure(call);
  if (is_closed || family_->failed() || !inner_->is_over()) return;
  family_->fail(failure.kind, failure.text, failure.ranks);
  family_->mark_thrown();
}

void LocalGroup::send_failure(const mpi::Failure& failure) noexcept {
  inner_->give_up(failure.kind, failure.text, failure.ranks);
}

// The interrupt callback of the inner group (the group over shared memory), which calls it while it
// waits. Return true to end the wait: if the callback of the caller returns true, or if another
// group of family_ (all groups that use the same MPI communicator) has failed.
bool LocalGroup::should_end_wait() {
  std::unique_lock<std::mutex>& lock = *active_lock_;
  lock.unlock();
  const bool is_over = is_interrupted();
  lock.lock();
  if (is_over) return true;
  try {
    if (is_watched()) family_->progress();
    check_other_groups();
  } catch (const Error&) {
    failure_elsewhere_ = std::current_exception();
    return true;
  }
  return false;
}

// All groups that use the same MPI communicator (family_) share one mutex. If another thread of the
// parent holds it at a fork, no thread of the child can ever lock it. Therefore try_submit(),
// try_wait() and try_split() do not lock it in a child. They call the inner group (over shared
// memory), which throws GroupClosed in a child.
std::optional<Work> LocalGroup::try_submit(const Collective& collective) {
  if (in_child()) return inner_->try_submit(collective);
  const Entry entry(*this);
  if (!entry) return std::nullopt;
  return locked(name_of(collective.kind).data(), [&] {
    in_flight_.reserve(in_flight_.size() + 1);  // before the submission: reserve() may throw
    const std::optional<Work> work = inner_->try_submit(collective);
    if (!work) return work;
    in_flight_.emplace_back().work = *work;
    in_flight_.back().call.assign(collective, size());
    family_->submitted();
    return work;
  });
}

bool LocalGroup::progress() noexcept {
  if (family_->failed()) return false;
  try {
    if (!move_works()) return true;
  } catch (const std::exception&) {
    const FailureView failure = failure_in_flight();
    if (failure.kind == ErrorKind::GroupClosed)
      in_flight_.clear();  // another thread has closed the group
    else
      family_->fail(failure);
  }
  return !in_flight_.empty();
}

// Advance the works of this group, and remove those that are complete. Return false if another
// thread waits in the inner group (the group over shared memory); that thread advances the works.
bool LocalGroup::move_works() {
  for (std::size_t i = 0; i < in_flight_.size();) {
    const Progress progress = inner_->try_wait(in_flight_[i].work, WaitLimits::patience(0));
    if (progress == Progress::Busy) return false;
    if (progress == Progress::NotYet) {
      ++i;
      continue;
    }
    in_flight_.erase(in_flight_.begin() + static_cast<std::ptrdiff_t>(i));
    ++num_done_;
  }
  return true;
}

// Wait for a work of this group. During the wait, advance the works of all groups of family_ (all
// groups that use the same MPI communicator). Return NotYet after `seconds`, or as soon as no other
// group has pending works. In the second case, the caller should wait in the inner group (the group
// over shared memory), which can sleep until a peer wakes it.
Progress LocalGroup::await(Work work, double seconds) {
  awaited_work_ = work;
  const mpi::Family::Waiting waiting(*family_);
  mpi::Backoff backoff(local_size());
  const auto start = Clock::now();
  auto next_look = start + kBetweenLooks;
  bool is_alone = false;
  while (!is_alone) {
    const Progress progress = locked("wait", [&] {
      family_->progress();
      // The next call of locked(), in this loop or in wait_inside(), throws the failure.
      if (family_->failed()) return Progress::NotYet;
      is_alone = !family_->in_flight_beside(*this);
      return inner_->try_wait(work, WaitLimits::patience(0));
    });
    if (progress != Progress::NotYet) return progress;
    if (Clock::now() >= next_look) {
      const std::lock_guard lock(family_->mutex());
      check_other_groups();
      next_look += kBetweenLooks;
    }
    if (Seconds(Clock::now() - start).count() >= seconds) break;
    backoff.pause();
  }
  return Progress::NotYet;
}

// Run a call that waits in the inner group (the group over shared memory). If should_end_wait() has
// ended the wait because another group has failed, throw the failure of that group.
template <class Call>
auto LocalGroup::wait_inside(const char* name, Call&& call) {
  failure_elsewhere_ = nullptr;
  try {
    return locked(name, call);
  } catch (const Error&) {
    if (failure_elsewhere_) std::rethrow_exception(std::exchange(failure_elsewhere_, nullptr));
    throw;
  }
}

Progress LocalGroup::try_wait(Work work, const WaitLimits& limits) {
  if (in_child()) return inner_->try_wait(work, limits);
  const Entry entry(*this);
  if (!entry) return Progress::Busy;
  const auto start = Clock::now();
  const bool has_timeout = !limits.has_patience() && limits.timeout_seconds > 0;
  const Progress progress =
      await(work, has_timeout ? limits.timeout_seconds : limits.patience_seconds);
  if (progress != Progress::NotYet) return progress;
  // The inner group (over shared memory) continues the wait, and reports the late rank at the
  // timeout. Its limits, `rest`, count the time that this call has already waited.
  WaitLimits rest = limits;
  rest.waited_seconds += Seconds(Clock::now() - start).count();
  if (limits.has_patience())
    rest = WaitLimits::patience(std::max(0.0, limits.patience_seconds - rest.waited_seconds));
  return wait_inside(limits.has_patience() ? "wait_for" : "wait",
                     [&] { return inner_->try_wait(work, rest); });
}

std::optional<std::unique_ptr<Communicator>> LocalGroup::try_split(int color, int key) {
  if (in_child()) return inner_->try_split(color, key);
  const Entry entry(*this);
  if (!entry) return std::nullopt;
  std::optional<std::unique_ptr<Communicator>> child =
      wait_inside("split", [&] { return inner_->try_split(color, key); });
  if (child && *child) *child = std::make_unique<LocalGroup>(family_, std::move(*child));
  return child;
}

std::vector<CallStats> LocalGroup::stats() const { return inner_->stats(); }

// Release a block that allocate() has returned. If MPI may still use its memory after a failure, do
// not free the block.
void LocalGroup::release(SharedBlock block) noexcept {
  if (!mpi::left_to_mpi()) inner_->release(block);
}

// Close the inner group (over shared memory) first. A thread that waits in the inner group then
// ends its wait and releases the mutex of family_ (all groups that use the same MPI communicator).
// The code below needs this mutex.
void LocalGroup::give_up(ErrorKind kind, std::string_view why,
                         std::span<const int> ranks) noexcept {
  inner_->give_up(kind, why, ranks);
  if (in_child()) return;
  const std::lock_guard lock(family_->mutex());
  family_->fail(is_between_ranks(kind) ? kind : ErrorKind::RemoteRank, why, ranks);
  family_->mark_thrown();
}

void LocalGroup::watch(bool is_on) noexcept {
  Communicator::watch(is_on);
  inner_->watch(is_on);
}

void LocalGroup::expect_no_failure(const CallRecord&) {
  if (!is_watched()) return;
  inner_->check_peers();
}

// Throw the failure that a rank has reported in another group of family_ (all groups that use the
// same MPI communicator). Only groups that a running compiled step uses, the watched groups, take
// part in this check. Without it, a wait in this group might last until its deadline. The caller
// waits in this group, and holds the mutex of family_.
void LocalGroup::check_other_groups() {
  if (!is_watched()) return;
  const auto submission = std::find_if(
      in_flight_.begin(), in_flight_.end(),
      [this](const Submitted& each) { return each.work.sequence == awaited_work_.sequence; });
  if (submission == in_flight_.end()) return;  // the awaited work has just ended
  notify_on_failure([&] { family_->expect_no_failure_beside(*this, submission->call); },
                    [&](const FailureView& failure) {
                      family_->fail(failure.kind, failure.text, failure.ranks);
                      family_->mark_thrown();
                    });
}

// Close the inner group (over shared memory) first. A thread that waits in the inner group then
// ends its wait and releases the mutex of family_ (all groups that use the same MPI communicator).
// The code below needs this mutex.
void LocalGroup::close() noexcept {
  if (in_child()) return;
  inner_->close();
  const std::lock_guard lock(family_->mutex());
  family_->remove(*this);
}

}  // namespace ngd::comm::hierarchical
