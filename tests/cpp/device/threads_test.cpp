// SPDX-License-Identifier: Apache-2.0
// Where threads run that are no kernel's (run with OMP_PROC_BIND, and without), and which threads
// parallel regions have.
#include "device/threads.hpp"

#include <gtest/gtest.h>
#include <omp.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace ngd::device {
namespace {

cpu_set_t my_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  EXPECT_EQ(sched_getaffinity(0, sizeof cores, &cores), 0);
  return cores;
}

// Of a thread started here, before and after it keeps off the kernels' cores.
struct Cores {
  cpu_set_t before, after;
};
Cores cores_of_a_helper() {
  Cores cores{};
  std::thread([&] {
    cores.before = my_cores();
    OffKernelCores off_kernel_cores;
    off_kernel_cores.follow();
    off_kernel_cores.follow();
    cores.after = my_cores();
  }).join();
  return cores;
}

TEST(Threads, AHelperOfUnboundKernelsStaysWhereItIs) {
  if (std::getenv("OMP_PROC_BIND") != nullptr) GTEST_SKIP() << "OMP_PROC_BIND is set";
  set_thread_share(1);
  const Cores cores = cores_of_a_helper();
  EXPECT_TRUE(CPU_EQUAL(&cores.before, &cores.after));
}

TEST(Threads, AHelperOfBoundKernelsRunsBesideThem) {
  if (std::getenv("OMP_PROC_BIND") == nullptr) GTEST_SKIP() << "OMP_PROC_BIND is not set";
  const int places = omp_get_num_places();
  if (places < 2) GTEST_SKIP() << "one core";
  const cpu_set_t kernels = my_cores();
  ASSERT_EQ(CPU_COUNT(&kernels), 1);
  set_thread_share(1);
  const Cores cores = cores_of_a_helper();
  EXPECT_TRUE(CPU_EQUAL(&cores.before, &kernels));  // what it would have been
  EXPECT_EQ(CPU_COUNT(&cores.after), places - 1);
  cpu_set_t both;
  CPU_AND(&both, &cores.after, &kernels);
  EXPECT_EQ(CPU_COUNT(&both), 0);
}

std::set<std::string> thread_ids() {
  std::set<std::string> ids;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task"))
    ids.insert(task.path().filename());
  return ids;
}

// Regions of fewer pieces than threads must not end the other threads.
TEST(Threads, RegionsOfAnySizeKeepTheSameThreads) {
  const int threads = thread_count();
  parallel_for(threads, 1, [](std::int64_t, std::int64_t) {});
  const std::set<std::string> first = thread_ids();
  for (int repeat = 0; repeat < 20; ++repeat)
    for (int pieces = 1; pieces <= threads; ++pieces) {
      parallel_for(pieces, 1, [](std::int64_t, std::int64_t) {});
      EXPECT_EQ(thread_ids(), first) << pieces << " pieces";
    }
}

TEST(Threads, PiecesCoverTheRangeOnce) {
  for (const std::int64_t count : {0, 1, 2, 3, 7, 8, 100}) {
    for (const std::int64_t grain : {1, 2, 5, 1000}) {
      std::vector<std::atomic<int>> visits(static_cast<std::size_t>(count));
      std::atomic<int> pieces{0};
      parallel_for(count, grain, [&](std::int64_t begin, std::int64_t end) {
        ++pieces;
        for (std::int64_t i = begin; i < end; ++i) ++visits[static_cast<std::size_t>(i)];
      });
      for (const auto& each : visits) EXPECT_EQ(each, 1) << count << " by " << grain;
      EXPECT_LE(pieces, std::min<std::int64_t>(thread_count(), (count + grain - 1) / grain));
    }
  }
}

}  // namespace
}  // namespace ngd::device
