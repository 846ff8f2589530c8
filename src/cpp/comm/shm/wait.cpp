// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/wait.hpp"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace ngd::comm::shm {

namespace {

// A look at the clock costs as much as a pause or two.
constexpr int kSpinsPerLook = 64;
// A sleep was short where the bell rang in this time: to sleep and to be woken takes as long.
constexpr std::uint64_t kShortNs = 50'000;
// Between two looks at the clock a rank that keeps its core needs some microseconds.
constexpr std::uint64_t kPushedOffNs = 500'000;
// A rank is disturbed for a second where it was pushed off for a quarter of the last 50 ms or more.
// A program of low priority takes four slices of 4 ms a second.
constexpr std::uint64_t kWindowNs = 50'000'000, kDisturbedNs = 1'000'000'000;
constexpr std::uint64_t kParts = 4;

}  // namespace

void wake(RankRecord& sleeper) noexcept {
  if (sleeper.sleeping.exchange(kAwake) == kAwake) return;  // another one wakes it
  sleeper.rung_ns.store(now_ns(), std::memory_order_relaxed);
  sleeper.doorbell.fetch_add(1);
  ::syscall(SYS_futex, &sleeper.doorbell, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

bool Ladder::hold() noexcept {
  if (!crowded_ && !disturbed_) {
    if (spin()) return true;
  } else if (held_ < yields_) {
    ++held_;
    ::sched_yield();
    return true;
  }
  if (!crowded_) find_out();
  return false;
}

// Time in which I was pushed off is no patience, up to a limit: what my caller does between two
// spins may take as long, and it looks after its peers and its deadline when I have no patience
// left.
bool Ladder::spin() noexcept {
  pause_cpu();
  if (++held_ % kSpinsPerLook != 0) return true;
  const std::uint64_t now = now_ns(), passed = now - std::exchange(looked_ns_, now);
  if (held_ == kSpinsPerLook) {
    spin_until_ns_ = now + patience_ns_;
    spin_at_most_until_ns_ = spin_until_ns_ + kMostPatienceNs;
  } else if (passed > kPushedOffNs) {
    spin_until_ns_ = std::min(spin_until_ns_ + passed, spin_at_most_until_ns_);
    pushed_off_ns_ += passed;
  }
  return now < spin_until_ns_;
}

void Ladder::woken(std::uint64_t asleep_ns, std::uint64_t rung_ns) noexcept {
  const bool was_short = rung_ns < asleep_ns + kShortNs;
  yields_ = std::clamp(was_short ? 2 * yields_ : yields_ - yields_ / 8, kLeastYields, kMostYields);
  const std::uint64_t wakeup = now_ns() - rung_ns;
  patience_ns_ = std::clamp(std::max(2 * wakeup, patience_ns_ - patience_ns_ / 8), kLeastPatienceNs,
                            kMostPatienceNs);
}

// Where I would sleep now: whether I am disturbed.
void Ladder::find_out() noexcept {
  const std::uint64_t now = now_ns(), passed = now - found_out_ns_;
  if (passed < (disturbed_ ? kDisturbedNs : kWindowNs)) return;
  disturbed_ = !disturbed_ && pushed_off_ns_ * kParts >= passed;
  found_out_ns_ = now;
  pushed_off_ns_ = 0;
}

void sleep_on(RankRecord& mine, std::uint32_t bell, std::uint64_t limit_ns) noexcept {
  const timespec limit{static_cast<time_t>(limit_ns / 1'000'000'000u),
                       static_cast<long>(limit_ns % 1'000'000'000u)};
  ::syscall(SYS_futex, &mine.doorbell, FUTEX_WAIT, bell, &limit, nullptr, 0);
}

}  // namespace ngd::comm::shm
