// SPDX-License-Identifier: Apache-2.0
// The number of threads that kernels use, and the cores that other threads use. team.hpp runs work.
#pragma once

namespace ngd::device {

// Return the number of threads that compute kernels. It is NGD_THREADS if that is set; otherwise,
// the value of set_thread_share() if it was called; otherwise, available_cores(). The result is
// lower if the system can start only fewer threads. It is 1 in a forked child, where libgomp hangs
// with more. Throws Init if NGD_THREADS is not a number, or exceeds what the system can start.
int thread_count();
// Return the number of cores that the affinity mask of this process, and the CPU quotas of the
// cgroups that enclose it, allow.
int available_cores() noexcept;
// Set the number of threads of this rank, if ranks share the available cores. Call it from a thread
// that runs kernels. Throws the errors of thread_count().
void set_thread_share(int threads);
// Keeps a thread that runs no kernels off the cores of the kernels' threads, if OpenMP binds these
// to places (OMP_PROC_BIND). The object is a variable of the thread's function. It is not
// thread_local: a thread_local variable is allocated at its first use, and the C library ends the
// process if this allocation fails.
class OffKernelCores {
 public:
  // Move the calling thread to cores on which no kernels run. If kernels run on all cores, the
  // thread may use all of them. If nothing has changed since the last call, a call costs one load.
  void follow() noexcept;

 private:
  int version_ = 0;
};

}  // namespace ngd::device
