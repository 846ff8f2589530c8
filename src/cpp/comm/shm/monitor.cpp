// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/monitor.hpp"

#include <sched.h>
#include <time.h>

#include <algorithm>

namespace ngd::comm::shm {

namespace {

// A pause between two reads of a word that another thread will change soon. The first 100 pauses
// are spins, the next 10 are yields, and later ones are sleeps of 10 to 200 microseconds: the other
// thread may hold the lock for microseconds (a system call) or milliseconds (a large copy).
class Nap {
 public:
  void take() noexcept {
    if (num_taken_ < kSpins) {
      pause_cpu();
    } else if (num_taken_ < kSpins + kYields) {
      ::sched_yield();
    } else {
      const timespec nap{0, std::min(kShortestNs << (num_taken_ - kSpins - kYields), kLongestNs)};
      ::nanosleep(&nap, nullptr);
    }
    num_taken_ = std::min(num_taken_ + 1, kSpins + kYields + kDoublings);
  }

 private:
  static constexpr int kSpins = 100, kYields = 10, kDoublings = 5;
  static constexpr long kShortestNs = 10'000, kLongestNs = 200'000;
  int num_taken_ = 0;
};

}  // namespace

bool Monitor::enter_slowly() noexcept {
  for (Nap nap;; nap.take()) {
    std::uint32_t word = 0;
    if (word_.compare_exchange_strong(word, kInside | kLocked, std::memory_order_acquire,
                                      std::memory_order_relaxed))
      return true;
    if ((word & kInside) != 0) return false;
  }
}

void Monitor::give_way() noexcept {
  unlock_inside();
  for (Nap nap; wanted(); nap.take()) {
  }
  lock_inside();
}

void Monitor::lock_inside() noexcept {
  std::uint32_t word = kInside;
  for (Nap nap; !word_.compare_exchange_strong(word, kInside | kLocked, std::memory_order_acquire,
                                               std::memory_order_relaxed);
       word = kInside)
    nap.take();
}

void Monitor::lock(RankRecord& sleeper) noexcept {
  wanted_.fetch_add(1);
  if (sleeper.sleeping.load() != kAwake) wake(sleeper);
  for (Nap nap;; nap.take()) {
    std::uint32_t word = word_.load(std::memory_order_relaxed);
    if ((word & kLocked) == 0 &&
        word_.compare_exchange_strong(word, word | kLocked, std::memory_order_acquire,
                                      std::memory_order_relaxed))
      break;
  }
  wanted_.fetch_sub(1, std::memory_order_relaxed);
}

// Clear `locked`, and keep `inside`, in the word that has both bits. A load and a store are enough,
// without an atomic exchange, because no other thread changes the word while `locked` is set.
void Monitor::unlock() noexcept {
  word_.store(word_.load(std::memory_order_relaxed) & kInside, std::memory_order_release);
}

}  // namespace ngd::comm::shm
