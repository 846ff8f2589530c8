// SPDX-License-Identifier: Apache-2.0
#include "comm/hierarchical/local_group.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <new>
#include <utility>

#include "comm/hierarchical/hosts.hpp"
#include "comm/messages.hpp"
#include "comm/mpi/backoff.hpp"
#include "comm/mpi/process.hpp"

namespace ngd::comm::hierarchical {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

namespace {

constexpr double kForEver = std::numeric_limits<double>::infinity();
constexpr auto kBetweenLooks = std::chrono::milliseconds(100);  // at the other groups

}  // namespace

LocalGroup::LocalGroup(std::shared_ptr<mpi::Family> family, std::unique_ptr<Communicator> inner)
    : family_(std::move(family)), inner_(std::move(inner)) {
  inner_->set_interrupt([this] { return ask(); });
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
  held_ = &lock;
  const auto call_locked = [&] {
    if (family_->failed()) family_->throw_failure(name);
    return call();
  };
  return notify_on_failure(call_locked, [&](const FailureView& failure) { report(failure, name); });
}

// With the lock held, while an error is thrown: one that has closed the group on this host closes
// the family, and with it the ranks of other hosts learn of it.
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

// Shared memory asks, in a wait of its own, whether to go on.
bool LocalGroup::ask() {
  std::unique_lock<std::mutex>& lock = *held_;
  lock.unlock();
  const bool is_over = interrupted();
  lock.lock();
  if (is_over) return true;
  try {
    if (watched()) family_->progress();
    look_at_others();
  } catch (const Error&) {
    failure_elsewhere_ = std::current_exception();
    return true;
  }
  return false;
}

// In a forked child another thread of the parent may hold the lock, and never gives it back: the
// calls below take no lock there, and the inner group raises the error.
Work LocalGroup::submit(const Collective& collective) {
  if (in_child()) return inner_->submit(collective);
  const Entry entry(*this);
  return locked(name_of(collective.kind).data(), [&] {
    in_flight_.emplace_back().call.assign(collective, size());  // it may ask for memory
    try {
      in_flight_.back().work = inner_->submit(collective);
    } catch (...) {
      in_flight_.pop_back();
      throw;
    }
    family_->submitted();
    return in_flight_.back().work;
  });
}

bool LocalGroup::progress() noexcept {
  if (family_->failed()) return false;
  try {
    move_works();
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::Busy) return true;  // a thread waits in there, and moves them
    if (error.kind() == ErrorKind::GroupClosed)
      in_flight_.clear();  // another thread has closed the group
    else
      family_->fail(error.kind(), error.what(), error.ranks());
  } catch (const std::exception&) {
    const FailureView failure = failure_in_flight();
    family_->fail(failure.kind, failure.text, failure.ranks);
  }
  return !in_flight_.empty();
}

void LocalGroup::move_works() {
  for (std::size_t i = 0; i < in_flight_.size();) {
    if (!inner_->done(in_flight_[i].work)) {
      ++i;
      continue;
    }
    in_flight_.erase(in_flight_.begin() + static_cast<std::ptrdiff_t>(i));
    ++done_;
  }
}

// True when the work is done. Returns early once nothing else in the family needs to be moved: then
// shared memory's own way of waiting is the better one.
bool LocalGroup::await(Work work, double seconds) {
  waited_ = work;
  const mpi::Family::Waiting waiting(*family_);
  mpi::Backoff backoff(local_size());
  const auto start = Clock::now();
  auto next_look = start + kBetweenLooks;
  bool alone = false;
  while (!alone) {
    const bool done = locked("wait", [&] {
      family_->progress();
      if (family_->failed()) return false;  // the next round throws it
      alone = !family_->in_flight_beside(*this);
      return inner_->done(work);
    });
    if (done) return true;
    if (Clock::now() >= next_look) {
      const std::lock_guard lock(family_->mutex());
      look_at_others();
      next_look += kBetweenLooks;
    }
    if (Seconds(Clock::now() - start).count() >= seconds) return false;
    backoff.pause();
  }
  return false;
}

// A wait of shared memory's own, which ask() may end.
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

void LocalGroup::wait(Work work, double timeout_seconds) {
  if (in_child()) return inner_->wait(work, timeout_seconds);
  const Entry entry(*this);
  const auto start = Clock::now();
  if (await(work, timeout_seconds == 0 ? kForEver : timeout_seconds)) return;
  // The inner group reports the late rank, with the time that this one has waited in all.
  const double waited = Seconds(Clock::now() - start).count();
  wait_inside("wait", [&] { inner_->wait_on(work, timeout_seconds, waited); });
}

bool LocalGroup::wait_for(Work work, double seconds) {
  if (in_child()) return inner_->wait_for(work, seconds);
  const Entry entry(*this);
  const auto start = Clock::now();
  if (await(work, seconds)) return true;
  const double left = std::max(0.0, seconds - Seconds(Clock::now() - start).count());
  return wait_inside("wait_for", [&] { return inner_->wait_for(work, left); });
}

std::unique_ptr<Communicator> LocalGroup::split(int color, int key) {
  if (in_child()) return inner_->split(color, key);
  const Entry entry(*this);
  std::unique_ptr<Communicator> child =
      wait_inside("split", [&] { return inner_->split(color, key); });
  if (!child) return nullptr;
  return std::make_unique<LocalGroup>(family_, std::move(child));
}

std::vector<CallStats> LocalGroup::stats() const { return inner_->stats(); }

// What MPI may still use is not given back.
void LocalGroup::release(SharedBlock block) noexcept {
  if (!mpi::left_to_mpi()) inner_->release(block);
}

// First on this host, which ends the wait of a thread that holds the lock.
void LocalGroup::abort(std::string_view traceback) noexcept {
  inner_->abort(traceback);
  if (in_child()) return;
  const std::lock_guard lock(family_->mutex());
  family_->fail(ErrorKind::RemoteRank, without_end(traceback), {});
  family_->mark_thrown();
}

void LocalGroup::watch(bool on) noexcept {
  Communicator::watch(on);
  inner_->watch(on);
}

void LocalGroup::expect_no_failure(const CallRecord&) {
  if (!watched()) return;
  inner_->check_peers();
}

// With the lock held. What a rank has said in another group, which the program needs, too.
void LocalGroup::look_at_others() {
  if (!watched()) return;
  const auto waited = std::find_if(
      in_flight_.begin(), in_flight_.end(),
      [this](const Submitted& each) { return each.work.sequence == waited_.sequence; });
  if (waited == in_flight_.end()) return;  // it has just ended
  notify_on_failure([&] { family_->expect_no_failure_beside(*this, waited->call); },
                    [&](const FailureView& failure) {
                      family_->fail(failure.kind, failure.text, failure.ranks);
                      family_->mark_thrown();
                    });
}

// A thread that waits inside holds the lock until its wait ends.
void LocalGroup::close() noexcept {
  if (in_child()) return;
  inner_->close();
  const std::lock_guard lock(family_->mutex());
  family_->remove(*this);
}

}  // namespace ngd::comm::hierarchical
