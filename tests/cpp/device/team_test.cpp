// SPDX-License-Identifier: Apache-2.0
// Tests shares of a range, and the work of a team. Run with several values of NGD_THREADS.
#include "device/team.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace ngd::device {
namespace {

using Ranges = std::vector<std::pair<std::int64_t, std::int64_t>>;

Ranges shares(std::int64_t count, std::int64_t unit, std::int64_t parts) {
  Ranges ranges;
  for (std::int64_t part = 0; part < parts; ++part) {
    const Range each = share(count, unit, part, parts);
    ranges.emplace_back(each.begin, each.end);
  }
  return ranges;
}

TEST(Share, DividesElementsNearlyEqually) {
  EXPECT_EQ(shares(12, 1, 1), (Ranges{{0, 12}}));
  EXPECT_EQ(shares(12, 1, 3), (Ranges{{0, 4}, {4, 8}, {8, 12}}));
  EXPECT_EQ(shares(10, 1, 3), (Ranges{{0, 3}, {3, 6}, {6, 10}}));
  EXPECT_EQ(shares(2, 1, 4), (Ranges{{0, 0}, {0, 1}, {1, 1}, {1, 2}}));
  EXPECT_EQ(shares(0, 1, 2), (Ranges{{0, 0}, {0, 0}}));
}

TEST(Share, ConsistsOfWholeUnits) {
  EXPECT_EQ(shares(48, 16, 2), (Ranges{{0, 16}, {16, 48}}));
  EXPECT_EQ(shares(100, 16, 3), (Ranges{{0, 32}, {32, 64}, {64, 100}}));  // 7 units, the last of 4
  EXPECT_EQ(shares(5, 16, 2), (Ranges{{0, 0}, {0, 5}}));
  EXPECT_EQ(shares(0, 16, 2), (Ranges{{0, 0}, {0, 0}}));
}

TEST(Share, CoversTheRangeOnce) {
  for (const std::int64_t count : {0, 1, 7, 8, 100, 1000})
    for (const std::int64_t unit : {1, 3, 8, 16})
      for (const std::int64_t parts : {1, 2, 3, 7, 32}) {
        std::int64_t end = 0;
        for (std::int64_t part = 0; part < parts; ++part) {
          const Range each = share(count, unit, part, parts);
          EXPECT_EQ(each.begin, end) << count << " by " << unit << ", part " << part;
          EXPECT_TRUE(each.begin % unit == 0 || each.begin == each.end);
          end = each.end;
        }
        EXPECT_EQ(end, count);
      }
}

TEST(Team, RangesCoverTheCountOnce) {
  for (const std::int64_t count : {0, 1, 2, 3, 7, 8, 100}) {
    for (const std::int64_t grain : {1, 2, 5, 1000}) {
      std::vector<std::atomic<int>> visits(static_cast<std::size_t>(count));
      std::atomic<int> pieces{0};
      for_range(count, grain, [&](std::int64_t begin, std::int64_t end) {
        ++pieces;
        for (std::int64_t i = begin; i < end; ++i) ++visits[static_cast<std::size_t>(i)];
      });
      for (const auto& each : visits) EXPECT_EQ(each, 1) << count << " by " << grain;
      EXPECT_LE(pieces, std::min<std::int64_t>(thread_count(), (count + grain - 1) / grain));
    }
  }
}

// Literals for the numbers of threads with which this test is run.
TEST(Team, RangesAreTheSharesOfTheThreads) {
  std::set<std::pair<std::int64_t, std::int64_t>> ranges, want;
  std::mutex mutex;
  for_range(10, 3, [&](std::int64_t begin, std::int64_t end) {
    const std::lock_guard lock(mutex);
    ranges.emplace(begin, end);
  });
  switch (thread_count()) {
    case 1:
      want = {{0, 10}};
      break;
    case 2:
      want = {{0, 5}, {5, 10}};
      break;
    case 3:
      want = {{0, 3}, {3, 6}, {6, 10}};
      break;
    default:
      want = {{0, 2}, {2, 5}, {5, 7}, {7, 10}};  // 4 pieces of 3, the last of 1: 4 shares
  }
  EXPECT_EQ(ranges, want);
}

TEST(Team, CallsEachPartOnce) {
  for (const std::int64_t pieces : {0, 1, 2, 3, 5, 8, 33}) {
    std::vector<std::atomic<int>> calls(static_cast<std::size_t>(pieces));
    for_pieces(pieces, [&](std::int64_t piece) { ++calls[static_cast<std::size_t>(piece)]; });
    for (const auto& each : calls) EXPECT_EQ(each, 1) << pieces;
  }
}

// A forked child has one thread, and a kernel that was built before may have more parts.
TEST(Team, OneThreadRunsAllPartsInAForkedChild) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::vector<std::int64_t> calls;
    for_pieces(5, [&](std::int64_t piece) { calls.push_back(piece); });
    _exit(calls == std::vector<std::int64_t>{0, 1, 2, 3, 4} ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

std::set<std::string> thread_ids() {
  std::set<std::string> ids;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task"))
    ids.insert(task.path().filename());
  return ids;
}

// Regions with fewer parts than threads must not end the other threads.
TEST(Team, RegionsOfAnySizeKeepTheSameThreads) {
  const int threads = thread_count();
  for_pieces(threads, [](std::int64_t) {});
  const std::set<std::string> first = thread_ids();
  for (int repeat = 0; repeat < 20; ++repeat)
    for (int pieces = 1; pieces <= threads; ++pieces) {
      for_pieces(pieces, [](std::int64_t) {});
      EXPECT_EQ(thread_ids(), first) << pieces << " pieces";
    }
}

}  // namespace
}  // namespace ngd::device
