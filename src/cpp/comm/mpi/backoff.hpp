// SPDX-License-Identifier: Apache-2.0
// The pauses of a thread that polls MPI: it spins, then yields, then sleeps for short times.
#pragma once

#include <sched.h>
#include <unistd.h>

#include <chrono>
#include <thread>

namespace ngd::comm::mpi {

class Backoff {
 public:
  // If there are more ranks on this host than cores, do not spin: a spinning thread could occupy
  // the core that the awaited rank needs.
  explicit Backoff(int local_size)
      : spins_(local_size <= ::sysconf(_SC_NPROCESSORS_ONLN) ? kSpins : 0) {}

  // Start again with the shortest pauses. A caller calls this when data have moved.
  void reset() { pauses_ = 0; }

  // Wait once between two polls. The first calls after reset() return at once, later calls yield
  // the core, and all further calls sleep for 50 us.
  void pause() {
    ++pauses_;
    if (pauses_ <= spins_) return;
    if (pauses_ <= spins_ + kYields) {
      ::sched_yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

 private:
  static constexpr int kSpins = 200;     // one poll of MPI per spin; all spins take about 20 us
  static constexpr int kYields = 20000;  // all yields take about 10 ms, longer than a transfer step
  int spins_;
  int pauses_ = 0;
};

}  // namespace ngd::comm::mpi
