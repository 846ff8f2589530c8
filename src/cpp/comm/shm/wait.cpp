// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/wait.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace ngd::comm::shm {

void wake(RankRecord& sleeper) noexcept {
  if (sleeper.sleeping.exchange(kAwake) == kAwake) return;  // another one wakes it
  sleeper.doorbell.fetch_add(1);
  ::syscall(SYS_futex, &sleeper.doorbell, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

Patience patience(bool crowded) noexcept { return crowded ? Patience{0, 20} : Patience{4000, 200}; }

void sleep_on(RankRecord& mine, std::uint32_t bell, std::uint64_t limit_ns) noexcept {
  const timespec limit{static_cast<time_t>(limit_ns / 1'000'000'000u),
                       static_cast<long>(limit_ns % 1'000'000'000u)};
  ::syscall(SYS_futex, &mine.doorbell, FUTEX_WAIT, bell, &limit, nullptr, 0);
}

}  // namespace ngd::comm::shm
