// SPDX-License-Identifier: Apache-2.0
#include "comm/hierarchical/local_group.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "comm/mpi/backoff.hpp"

namespace ngd::comm::hierarchical {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

LocalGroup::LocalGroup(std::shared_ptr<mpi::Family> family, std::unique_ptr<Communicator> inner)
    : family_(std::move(family)), inner_(std::move(inner)) {
  inner_->set_interrupt([this] { return interrupted(); });
  const std::lock_guard lock(family_->mutex());
  family_->add(*this);
}

void LocalGroup::rethrow() {
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

Work LocalGroup::submit(const Collective& collective) {
  if (family_->in_child()) return inner_->submit(collective);  // which says what is wrong
  const std::lock_guard lock(family_->mutex());
  rethrow();
  const Work work = inner_->submit(collective);
  in_flight_.push_back(work);
  family_->submitted();
  return work;
}

bool LocalGroup::progress() noexcept {
  try {
    std::erase_if(in_flight_, [this](Work work) { return inner_->done(work); });
  } catch (...) {
    failure_ = std::current_exception();
    in_flight_.clear();
  }
  return !in_flight_.empty();
}

// True when the work is done. Returns early once nothing else in the family needs to be moved: then
// shared memory's own way of waiting is the better one.
bool LocalGroup::await(Work work, double seconds) {
  const mpi::Family::Waiting waiting(*family_);
  mpi::Backoff backoff(local_size());
  const auto start = Clock::now();
  while (true) {
    {
      const std::lock_guard lock(family_->mutex());
      family_->progress();
      rethrow();
      if (inner_->done(work)) return true;
      if (!family_->in_flight_beside(*this)) return false;
    }
    if (Seconds(Clock::now() - start).count() >= seconds) return false;
    backoff.pause();
  }
}

void LocalGroup::wait(Work work, double timeout_seconds) {
  if (family_->in_child()) return inner_->wait(work, timeout_seconds);
  const auto start = Clock::now();
  if (await(work, timeout_seconds == 0 ? 1e18 : timeout_seconds)) return;
  const double spent = Seconds(Clock::now() - start).count();
  const double left = timeout_seconds == 0 ? 0 : std::max(timeout_seconds - spent, 1e-3);
  const std::lock_guard lock(family_->mutex());
  inner_->wait(work, left);
}

bool LocalGroup::wait_for(Work work, double seconds) {
  if (family_->in_child()) return inner_->wait_for(work, seconds);
  const auto start = Clock::now();
  if (await(work, seconds)) return true;
  const double left = std::max(0.0, seconds - Seconds(Clock::now() - start).count());
  const std::lock_guard lock(family_->mutex());
  return inner_->wait_for(work, left);
}

std::unique_ptr<Communicator> LocalGroup::split(int color, int key) {
  std::unique_ptr<Communicator> child = inner_->split(color, key);
  if (!child) return nullptr;
  return std::make_unique<LocalGroup>(family_, std::move(child));
}

std::vector<CallStats> LocalGroup::stats() const { return inner_->stats(); }

SharedBlock LocalGroup::allocate(std::size_t bytes) {
  const std::lock_guard lock(family_->mutex());
  return inner_->allocate(bytes);
}

void LocalGroup::release(SharedBlock block) noexcept {
  if (family_->in_child()) return;
  const std::lock_guard lock(family_->mutex());
  inner_->release(block);
}

void LocalGroup::abort(const std::string& traceback) noexcept {
  if (family_->in_child()) return;
  const std::lock_guard lock(family_->mutex());
  inner_->abort(traceback);
}

void LocalGroup::close() noexcept {
  if (closed_ || family_->in_child()) return;
  closed_ = true;
  const std::lock_guard lock(family_->mutex());
  family_->remove(*this);
  inner_->close();
}

}  // namespace ngd::comm::hierarchical
