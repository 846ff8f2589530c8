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

// The number of spins between two readings of the clock. A reading costs as much as one or two
// spins.
constexpr int kSpinsPerLook = 64;
// A sleep counts as short if a peer rang the doorbell less than kShortNs after the rank fell
// asleep. kShortNs is about the time that a rank needs to fall asleep and wake up.
constexpr std::uint64_t kShortNs = 50'000;
// A longer time between two readings of the clock means that the rank had no core: with a core, it
// reads the clock every few microseconds.
constexpr std::uint64_t kPushedOffNs = 500'000;
// A rank is disturbed if it had no core for at least a quarter (1 / kParts) of a period of 50 ms
// (kWindowNs) or more. It then counts as disturbed for one second (kDisturbedNs). A program of low
// priority takes only about 1.6 % of a core (four slices of 4 ms per second), so it does not make a
// rank disturbed.
constexpr std::uint64_t kWindowNs = 50'000'000, kDisturbedNs = 1'000'000'000;
constexpr std::uint64_t kParts = 4;

}  // namespace

void wake(RankRecord& sleeper) noexcept {
  if (sleeper.sleeping.exchange(kAwake) == kAwake) return;  // another rank wakes it already
  sleeper.rung_ns.store(now_ns(), std::memory_order_relaxed);
  sleeper.doorbell.fetch_add(1);
  ::syscall(SYS_futex, &sleeper.doorbell, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

bool Ladder::spin_or_yield() noexcept {
  if (!is_crowded_ && !is_disturbed_) {
    if (spin()) return true;
  } else if (count_ < yields_) {
    ++count_;
    ::sched_yield();
    return true;
  }
  if (!is_crowded_) update_disturbed();
  return false;
}

// Spin once. Return false if the spins since restart() have taken patience_ns_ nanoseconds. If two
// readings of the clock are more than kPushedOffNs apart, the thread had no core, or the caller did
// other work. Such a gap does not count as spinning: the rank may spin longer by the length of the
// gap. All gaps together add at most kMostPatienceNs, because the caller must check its peers and
// its deadline now and then.
bool Ladder::spin() noexcept {
  pause_cpu();
  if (++count_ % kSpinsPerLook != 0) return true;
  const std::uint64_t now = now_ns(), elapsed_ns = now - std::exchange(last_look_ns_, now);
  if (count_ == kSpinsPerLook) {
    spin_until_ns_ = now + patience_ns_;
    spin_at_most_until_ns_ = spin_until_ns_ + kMostPatienceNs;
  } else if (elapsed_ns > kPushedOffNs) {
    spin_until_ns_ = std::min(spin_until_ns_ + elapsed_ns, spin_at_most_until_ns_);
    pushed_off_ns_ += elapsed_ns;
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

void Ladder::update_disturbed() noexcept {
  const std::uint64_t now = now_ns(), elapsed_ns = now - updated_ns_;
  if (elapsed_ns < (is_disturbed_ ? kDisturbedNs : kWindowNs)) return;
  is_disturbed_ = !is_disturbed_ && pushed_off_ns_ * kParts >= elapsed_ns;
  updated_ns_ = now;
  pushed_off_ns_ = 0;
}

void sleep_on(RankRecord& mine, std::uint32_t bell, std::uint64_t limit_ns) noexcept {
  const timespec limit{static_cast<time_t>(limit_ns / 1'000'000'000u),
                       static_cast<long>(limit_ns % 1'000'000'000u)};
  ::syscall(SYS_futex, &mine.doorbell, FUTEX_WAIT, bell, &limit, nullptr, 0);
}

}  // namespace ngd::comm::shm
