// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/task_thread.hpp"

#include <pthread.h>

#include <csignal>
#include <thread>

namespace ngd::comm::mpi {

TaskThread::TaskThread() {
  // Block all signals in the new thread: the threads of the program handle them.
  sigset_t all, old_mask;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old_mask);
  struct Restore {
    const sigset_t& mask;
    ~Restore() { pthread_sigmask(SIG_SETMASK, &mask, nullptr); }
  } restore{old_mask};
  std::thread([this] { serve(); }).detach();
}

void TaskThread::add(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  arrived_.notify_one();
}

void TaskThread::serve() {
  for (;;) {
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [this] { return !tasks_.empty(); });
    const std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
  }
}

}  // namespace ngd::comm::mpi
