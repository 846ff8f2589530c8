// SPDX-License-Identifier: Apache-2.0
// The number of threads that kernels use, and the cores that other threads use. team.hpp runs work.
#pragma once

namespace ngd::device {

// NGD_THREADS; or this process's share of its cores, once it is set; or all cores that it may use;
// of these as many as can be started. In a forked child 1 (libgomp hangs there with more). Throws
// Init where NGD_THREADS is no number, or more than can be started.
int thread_count();
int available_cores() noexcept;  // by the affinity mask and the quotas of enclosing cgroups
// What is left of them beside the ranks that share them. Called by a thread that runs kernels.
// Throws as thread_count() does.
void set_thread_share(int threads);
// Keeps a thread that runs no kernels off the cores of the kernels' threads, if OpenMP binds those to
// places (OMP_PROC_BIND). The thread owns it: a thread-local variable would be made when it is first
// used, and the C library ends the process if there is no memory for it.
class OffKernelCores {
 public:
  // Moves the calling thread to cores on which no kernels run; to any core if kernels run on all.
  // A repeated call costs one load.
  void follow() noexcept;

 private:
  int followed_ = 0;
};

}  // namespace ngd::device
