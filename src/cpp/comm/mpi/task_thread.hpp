// SPDX-License-Identifier: Apache-2.0
// One thread that runs tasks, in turn, for as long as the process lives.
//
// MPI has to be finalized by the thread that initialised it (MPI 4.0, 11.6). MPI_Init_thread may
// block until every rank of the job has come, so it runs on a thread that the caller can abandon at
// its deadline. This thread runs MPI_Finalize as well.
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
  // The thread uses the object until the process ends.
  ~TaskThread() = delete;
  TaskThread(const TaskThread&) = delete;
  TaskThread& operator=(const TaskThread&) = delete;

  // Runs call() on the thread; the future has its result or its exception.
  template <class Call>
  auto run(Call call) {
    const auto task = std::make_shared<std::packaged_task<decltype(call())()>>(std::move(call));
    auto result = task->get_future();
    add([task] { (*task)(); });
    return result;
  }

 private:
  void add(std::function<void()> task);
  void serve();

  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<std::function<void()>> tasks_;
};

}  // namespace ngd::comm::mpi
