// SPDX-License-Identifier: Apache-2.0
// Parts of the communicator over MPI that need no MPI.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "comm/mpi/progress_gate.hpp"
#include "comm/mpi/task_thread.hpp"

namespace ngd::comm::mpi {
namespace {

using Clock = std::chrono::steady_clock;

// A wait ends while the thread falls asleep. Before the lock was taken in between, one of some ten
// thousand wake-ups was lost, and the thread slept for as long as it may.
TEST(ProgressGate, IsOpenedByEveryEndOfAWait) {
  constexpr auto kLimit = std::chrono::milliseconds(2000);
  const auto end = Clock::now() + std::chrono::seconds(3);
  std::mutex mutex;
  ProgressGate gate(mutex);
  gate.set_in_flight(true);
  gate.begin_wait();
  std::atomic<int> looks{0};
  std::thread thread([&] {
    std::unique_lock lock(mutex);
    while (!gate.is_stopped()) {
      gate.sleep_until_needed(lock, kLimit);
      ++looks;
      lock.unlock();
      while (gate.is_needed()) std::this_thread::yield();
      lock.lock();
    }
  });
  Clock::duration longest{};
  while (Clock::now() < end) {
    const int before = looks;
    const auto start = Clock::now();
    gate.end_wait();
    while (looks == before) std::this_thread::yield();
    longest = std::max(longest, Clock::now() - start);
    gate.begin_wait();
  }
  {
    const std::lock_guard lock(mutex);
    gate.stop();
  }
  thread.join();
  EXPECT_LT(std::chrono::duration<double>(longest).count(), 1.5);
}

TEST(TaskThread, RunsAllTasksOnOneThread) {
  TaskThread& tasks = *new TaskThread;
  const auto id = [] { return std::this_thread::get_id(); };
  const std::thread::id first = tasks.run(id).get();
  EXPECT_NE(first, std::this_thread::get_id());
  std::thread([&] { EXPECT_EQ(tasks.run(id).get(), first); }).join();
  EXPECT_THROW(tasks.run([]() -> int { throw std::runtime_error("no"); }).get(),
               std::runtime_error);
  EXPECT_EQ(tasks.run(id).get(), first);
}

}  // namespace
}  // namespace ngd::comm::mpi
