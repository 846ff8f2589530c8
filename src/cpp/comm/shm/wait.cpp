// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/wait.hpp"

#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace ngd::comm::shm {

namespace {

// A look at the clock costs as much as a pause or two.
constexpr int kSpinsPerLook = 64;
// A sleep was short where the bell rang in this time: to sleep and to be woken takes as long.
constexpr std::uint64_t kShortNs = 50'000;
// A rank is disturbed from the time on when others take more than the first part of its time, until
// they take less than the second.
constexpr std::uint64_t kLookNs = 20'000'000, kCalmNs = 100'000'000;
constexpr std::uint64_t kDisturbedPart = 5, kCalmPart = 20;

// How long this thread was ready to run and did not, in all its life; 0 where Linux does not say.
std::uint64_t delayed_ns() noexcept {
  const int fd = ::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  char text[64] = {};
  const ssize_t length = ::read(fd, text, sizeof text - 1);
  ::close(fd);
  const char* delay = length > 0 ? std::strchr(text, ' ') : nullptr;
  return delay == nullptr ? 0 : std::strtoull(delay, nullptr, 10);
}

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
  if (!crowded_) disturbed_ = disturbed();
  return false;
}

bool Ladder::spin() noexcept {
  pause_cpu();
  if (++held_ % kSpinsPerLook != 0) return true;
  const std::uint64_t now = now_ns();
  if (held_ == kSpinsPerLook) spin_until_ns_ = now + patience_ns_;
  return now < spin_until_ns_;
}

void Ladder::woken(std::uint64_t asleep_ns, std::uint64_t rung_ns) noexcept {
  const bool was_short = rung_ns < asleep_ns + kShortNs;
  yields_ = std::clamp(was_short ? 2 * yields_ : yields_ - 1, kLeastYields, kMostYields);
  const std::uint64_t wakeup = now_ns() - rung_ns;
  patience_ns_ = std::clamp(std::max(2 * wakeup, patience_ns_ - patience_ns_ / 8), kLeastPatienceNs,
                            kMostPatienceNs);
}

// Found out where I would sleep now.
bool Ladder::disturbed() noexcept {
  const std::uint64_t now = now_ns(), passed = now - looked_ns_;
  if (passed < (disturbed_ ? kCalmNs : kLookNs)) return disturbed_;
  const std::uint64_t before = std::exchange(delayed_ns_, delayed_ns());
  const std::uint64_t taken = delayed_ns_ < before ? 0 : delayed_ns_ - before;  // another thread
  looked_ns_ = now;
  return taken * (disturbed_ ? kCalmPart : kDisturbedPart) > passed;
}

void sleep_on(RankRecord& mine, std::uint32_t bell, std::uint64_t limit_ns) noexcept {
  const timespec limit{static_cast<time_t>(limit_ns / 1'000'000'000u),
                       static_cast<long>(limit_ns % 1'000'000'000u)};
  ::syscall(SYS_futex, &mine.doorbell, FUTEX_WAIT, bell, &limit, nullptr, 0);
}

}  // namespace ngd::comm::shm
