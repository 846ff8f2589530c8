// SPDX-License-Identifier: Apache-2.0
// The object that decides when the progress thread runs: while collectives, sends or receives are
// pending and no other thread waits for one.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

namespace ngd::comm::mpi {

class ProgressGate {
 public:
  explicit ProgressGate(std::mutex& mutex) noexcept : mutex_(mutex) {}
  ProgressGate(const ProgressGate&) = delete;
  ProgressGate& operator=(const ProgressGate&) = delete;

  // A caller must hold the mutex for each function from set_in_flight() to is_needed(). The only
  // exception: end_wait() calls wake_thread() without the mutex. set_in_flight() records if
  // collectives, sends or receives are pending.
  void set_in_flight(bool in_flight) noexcept { in_flight_ = in_flight; }
  // Wake the thread from sleep_until_needed(). It sleeps again if is_needed() is false.
  void wake_thread() noexcept {
    if (is_resting_.load(std::memory_order_relaxed)) wake_.notify_one();
  }
  // Make the thread end, and wake it from every sleep.
  void stop() noexcept {
    is_stopped_ = true;
    wake_.notify_all();
  }
  bool is_stopped() const noexcept { return is_stopped_; }
  // Return true if collectives, sends or receives are pending and no thread waits for one.
  bool is_needed() const noexcept { return waiting_ == 0 && in_flight_; }

  // A thread that waits for a collective, send or receive calls begin_wait() before the wait and
  // end_wait() after it. It does not hold the mutex in these calls. end_wait() wakes the progress
  // thread if collectives, sends or receives are pending and no other thread waits.
  void begin_wait() noexcept { ++waiting_; }
  void end_wait() noexcept {
    if (--waiting_ > 0 || !in_flight_) return;
    // The progress thread holds the mutex from the read of `waiting_` until it sleeps. If it has
    // read the old value of `waiting_` and does not sleep yet, it would miss the wake-up. So take
    // the mutex once: after that, the thread sleeps and can be woken, or it reads the new value.
    {
      const std::lock_guard lock(mutex_);
    }
    wake_thread();
  }

  // The progress thread calls the next two functions with the mutex held. They release it while the
  // thread sleeps.
  void sleep_until_needed(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds limit) {
    is_resting_ = true;
    wake_.wait_for(lock, limit, [this] { return is_stopped_ || is_needed(); });
    is_resting_ = false;
  }
  // Sleep for `limit`, or until stop().
  void nap(std::unique_lock<std::mutex>& lock, std::chrono::microseconds limit) {
    wake_.wait_for(lock, limit, [this] { return is_stopped_; });
  }

 private:
  std::mutex& mutex_;
  std::atomic<int> waiting_{0};
  std::atomic<bool> in_flight_{false};
  std::atomic<bool> is_resting_{false};  // the thread sleeps until it is woken
  bool is_stopped_ = false;
  std::condition_variable wake_;
};

}  // namespace ngd::comm::mpi
