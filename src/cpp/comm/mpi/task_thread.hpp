// SPDX-License-Identifier: Apache-2.0
// A thread that runs tasks, one after the other, as long as the process exists.
//
// MPI must be finalized by the thread that initialised it (MPI 4.0, section 11.6). MPI_Init_thread
// may block until all ranks of the job have arrived, so it runs on a thread that the caller can
// abandon at its deadline. The same thread runs MPI_Finalize.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <utility>

namespace ngd::comm::mpi {

class TaskThread {
 public:
  TaskThread();  // throws std::system_error if no thread can be started
  // The destructor is deleted, because the thread uses the object until the process ends.
  ~TaskThread() = delete;
  TaskThread(const TaskThread&) = delete;
  TaskThread& operator=(const TaskThread&) = delete;

  // Run call() on the thread. The future gets its result or its exception.
  template <class Call>
  auto run(Call call) {
    const auto task = std::make_shared<std::packaged_task<decltype(call())()>>(std::move(call));
    auto result = task->get_future();
    add([task] { (*task)(); });
    return result;
  }

 private:
  // Append a task to the queue, and wake the thread.
  void add(std::function<void()> task);
  // Run the tasks in order, on the thread. Never returns.
  void serve();

  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<std::function<void()>> tasks_;
};

}  // namespace ngd::comm::mpi
