// SPDX-License-Identifier: Apache-2.0
// The number of threads that kernels use, and the cores that other threads use. team.hpp divides
// the work of a kernel among the threads.
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
// Set the number of threads of this rank, for ranks that share the cores of a host. thread_count()
// uses this number unless NGD_THREADS is set. Call the function from a thread that runs kernels: if
// OpenMP binds threads to cores, the function runs a parallel region to read the affinity masks of
// the OpenMP threads that work for the calling thread. Throws the errors of thread_count().
void set_thread_share(int threads);
// Keeps a thread that runs no kernels off the cores of the kernels' threads, if OpenMP binds these
// to places (OMP_PROC_BIND). The thread's main function has the object as a local variable. A
// thread_local variable would not be safe: the C library allocates it at its first use, and ends
// the process if the allocation fails.
class OffKernelCores {
 public:
  // Move the calling thread to cores on which no kernels run, or to all cores if kernels run on all
  // of them. If set_thread_share() was not called since the last follow() of this object, the
  // function only reads an atomic variable.
  void follow() noexcept;

 private:
  int version_ = 0;
};

}  // namespace ngd::device
