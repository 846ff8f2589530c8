// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/wait.hpp"

#include <linux/futex.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace ngd::comm::shm {

namespace {

// A pause takes about 25 ns, so a rank with a core to itself spins for 0.1 ms: longer than a
// wake-up takes (65 us), short enough not to starve what else may run there.
constexpr int kSpins = 4000;
// All-reduce of 1 MiB among 8 ranks on 2 busy cores took 5.7, 3.0, 4.2 and 10.7 ms with 0, 5, 20
// and 100 yields; of 8 bytes 114, 32, 16 and 16 us.
constexpr int kYields = 10;
// Of 2 ranks on 2 cores that eight other processes wanted, 3000 mixed collectives took 0.7 to 2.9
// s, and 0.2 s with ranks that yield for a while after they were pushed off.
constexpr std::uint64_t kMemoryNs = 100'000'000;

}  // namespace

void wake(RankRecord& sleeper) noexcept {
  if (sleeper.sleeping.exchange(kAwake) == kAwake) return;  // another one wakes it
  sleeper.doorbell.fetch_add(1);
  ::syscall(SYS_futex, &sleeper.doorbell, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

bool Ladder::hold() noexcept {
  if (held_ < (yields_ ? kYields : kSpins)) {
    ++held_;
    if (yields_)
      ::sched_yield();
    else
      pause_cpu();
    return true;
  }
  yields_ = crowded_ || pushed_off();
  return false;
}

bool Ladder::pushed_off() noexcept {
  rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  const std::uint64_t now = now_ns();
  if (usage.ru_nivcsw != switches_) yields_until_ns_ = now + kMemoryNs;
  switches_ = usage.ru_nivcsw;
  return now < yields_until_ns_;
}

void sleep_on(RankRecord& mine, std::uint32_t bell, std::uint64_t limit_ns) noexcept {
  const timespec limit{static_cast<time_t>(limit_ns / 1'000'000'000u),
                       static_cast<long>(limit_ns % 1'000'000'000u)};
  ::syscall(SYS_futex, &mine.doorbell, FUTEX_WAIT, bell, &limit, nullptr, 0);
}

}  // namespace ngd::comm::shm
