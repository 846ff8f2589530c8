// SPDX-License-Identifier: Apache-2.0
// Tests how long a rank spins, and how often it yields, before it sleeps.
#include <gtest/gtest.h>

#include "comm/shm/wait.hpp"

namespace ngd::comm::shm {
namespace {

int holds(Ladder& ladder) {
  int count = 0;
  ladder.restart();
  while (ladder.spin_or_yield()) ++count;
  return count;
}

// Sleep until a bell that rings after `after_ns`, and wake up `wakeup_ns` later.
void sleep_once(Ladder& ladder, std::uint64_t after_ns, std::uint64_t wakeup_ns) {
  const std::uint64_t rung = now_ns() - wakeup_ns;
  ladder.woken(rung - after_ns, rung);
}

TEST(Ladder, SpinsForTwiceAsLongAsTheLastWakeUpTook) {
  Ladder ladder(/*crowded=*/false);
  sleep_once(ladder, 1'000'000, 700'000);
  ladder.restart();
  const std::uint64_t start = now_ns();
  while (ladder.spin_or_yield()) {
  }
  EXPECT_GE(now_ns() - start, 1'400'000u);
}

// With many pending collectives, the work between two spins may take longer than a time slice.
TEST(Ladder, EndsEvenIfTheCallerIsSlow) {
  Ladder ladder(/*crowded=*/false);
  ladder.restart();
  const std::uint64_t start = now_ns();
  while (ladder.spin_or_yield() && now_ns() - start < 1'000'000'000)
    for (const std::uint64_t since = now_ns(); now_ns() - since < 20'000;) continue;
  EXPECT_LT(now_ns() - start, 500'000'000u);
}

TEST(Ladder, CrowdedRanksYieldMoreOftenAfterShortSleepsAndLessOftenAfterLongOnes) {
  Ladder ladder(/*crowded=*/true);
  EXPECT_EQ(holds(ladder), 10);
  sleep_once(ladder, 0, 100'000);
  EXPECT_EQ(holds(ladder), 20);
  for (int i = 0; i < 20; ++i) sleep_once(ladder, 1'000, 100'000);
  EXPECT_EQ(holds(ladder), 5'000);
  sleep_once(ladder, 1'000'000, 100'000);
  EXPECT_EQ(holds(ladder), 4'375);
  for (int i = 0; i < 1'000; ++i) sleep_once(ladder, 1'000'000, 100'000);
  EXPECT_EQ(holds(ladder), 10);
}

}  // namespace
}  // namespace ngd::comm::shm
