// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/family.hpp"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <string>

#include "base/config.hpp"
#include "base/error.hpp"

namespace ngd::comm::mpi {
namespace {

// Between two looks when nothing moved: at 10 Gbit/s 125 KB arrive meanwhile, which the sockets
// hold; a look costs 2 to 5 us.
constexpr auto kNap = std::chrono::microseconds(100);

bool progress_thread_wanted(const Endpoint& endpoint) {
  const std::string wanted = config::progress();
  if (wanted != "auto" && wanted != "on" && wanted != "off")
    fail(ErrorKind::Init, "NGD_PROGRESS: expected one of auto, on, off; got '", wanted, "'");
  int provided = MPI_THREAD_SINGLE;
  MPI_Query_thread(&provided);
  const bool possible = endpoint.size > 1 && provided == MPI_THREAD_MULTIPLE;
  if (wanted == "on" && !possible && endpoint.size > 1)
    fail(ErrorKind::Init, "NGD_PROGRESS=on, but MPI was initialised without MPI_THREAD_MULTIPLE");
  return possible && (wanted == "on" || (wanted == "auto" && endpoint.local_size < endpoint.size));
}

}  // namespace

Family::Family(const Endpoint& endpoint) : endpoint_(endpoint), owner_(::getpid()) {
  void* limit = nullptr;
  int found = 0;
  MPI_Comm_get_attr(endpoint.comm, MPI_TAG_UB, static_cast<void*>(&limit), &found);
  if (found) tag_limit_ = *static_cast<int*>(limit);
  if (!progress_thread_wanted(endpoint)) return;
  // Signals are for the threads that were there before.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::make_unique<std::thread>([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Family::~Family() {
  if (in_child()) {
    static_cast<void>(thread_.release());  // the thread is not there to be joined
    return;
  }
  if (thread_) {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    thread_->join();
  }
  int finalized = 0;
  MPI_Finalized(&finalized);
  MPI_Comm comm = endpoint_.comm;
  if (clean_ && !finalized) MPI_Comm_free(&comm);
}

bool Family::in_child() const noexcept { return ::getpid() != owner_; }

void Family::progress() noexcept {
  busy_.clear();
  for (Member* member : members_)
    if (member->progress()) busy_.push_back(member);
  in_flight_ = !busy_.empty();
}

bool Family::in_flight_beside(const Member& member) const noexcept {
  return std::any_of(busy_.begin(), busy_.end(), [&](Member* busy) { return busy != &member; });
}

void Family::wake_progress_thread() noexcept {
  if (resting_.load(std::memory_order_relaxed)) wake_.notify_one();
}

void Family::run() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (waiting_ > 0 || !in_flight_) {
      resting_ = true;
      wake_.wait_for(lock, std::chrono::milliseconds(100),
                     [&] { return stop_ || (waiting_ == 0 && in_flight_); });
      resting_ = false;
      if (waiting_ > 0 || !in_flight_) continue;
    }
    progress();
    wake_.wait_for(lock, kNap, [&] { return stop_; });
  }
}

}  // namespace ngd::comm::mpi
