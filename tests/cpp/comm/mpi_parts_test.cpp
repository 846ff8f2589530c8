// SPDX-License-Identifier: Apache-2.0
// Parts of the communicator over MPI that need no MPI.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "comm/mpi/progress_gate.hpp"
#include "comm/mpi/task_thread.hpp"

namespace ngd::comm::mpi {
namespace {

// The progress thread holds the mutex from its look at the waits until it sleeps. A wait that ends in
// between would wake no thread, so its end waits for the mutex. The test holds it in place of that thread.
TEST(ProgressGate, AWaitEndsBeforeTheThreadLooksOrWhenItSleeps) {
  std::mutex mutex;
  ProgressGate gate(mutex);
  gate.set_in_flight(true);
  gate.begin_wait();
  std::unique_lock lock(mutex);
  EXPECT_FALSE(gate.is_needed());
  std::atomic<bool> ended{false};
  std::thread caller([&] {
    gate.end_wait();
    ended = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_FALSE(ended);
  const auto start = std::chrono::steady_clock::now();
  gate.sleep_until_needed(lock, std::chrono::seconds(20));
  EXPECT_TRUE(gate.is_needed());
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  lock.unlock();
  caller.join();
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
