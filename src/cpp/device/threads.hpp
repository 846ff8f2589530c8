// SPDX-License-Identifier: Apache-2.0
// How many threads kernels may use, and the one guarded way into OpenMP.
#pragma once

#include <omp.h>

#include <cstddef>
#include <cstdint>

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

// Calls body(begin, end) over [0, count) in pieces of at least `grain`, on up to thread_count()
// threads. The pieces depend on count, grain and thread_count() only.
//
// Every parallel region has the full team of thread_count() threads, and threads without a piece
// return at once. A region of fewer threads would make libgomp end the others, and the next full
// region would create them again: several thread creations in every step.
template <class Body>
void parallel_for(std::int64_t count, std::int64_t grain, Body&& body) {
  const std::int64_t pieces_wanted = grain > 0 ? (count + grain - 1) / grain : 1;
  const int threads = thread_count();
  const int pieces = static_cast<int>(pieces_wanted < threads ? pieces_wanted : threads);
  if (pieces <= 1) {
    if (count > 0) body(std::int64_t{0}, count);
    return;
  }
#pragma omp parallel num_threads(threads)
  // The stride covers a team that OpenMP made smaller than was asked (OMP_DYNAMIC).
  for (int i = omp_get_thread_num(); i < pieces; i += omp_get_num_threads()) {
    const std::int64_t begin = count * i / pieces, end = count * (i + 1) / pieces;
    if (begin < end) body(begin, end);
  }
}

}  // namespace ngd::device
