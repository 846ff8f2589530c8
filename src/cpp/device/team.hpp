// SPDX-License-Identifier: Apache-2.0
// The team: the thread_count() threads that compute a rank's kernels. These functions divide work
// among them.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

#include "base/bits.hpp"
#include "device/threads.hpp"

namespace ngd::device {

// The elements [begin, end).
struct Range {
  std::int64_t begin, end;
  std::int64_t size() const { return end - begin; }
};

// Divide [0, count) into `parts` nearly equal, consecutive shares that begin at multiples of
// `unit`, and return share number `part`. A share may be empty.
constexpr Range share(std::int64_t count, std::int64_t unit, std::int64_t part,
                      std::int64_t parts) noexcept {
  const std::int64_t units = divide_up(count, unit);
  return {units * part / parts * unit, std::min(count, units * (part + 1) / parts * unit)};
}

// Call body(begin, end) for nearly equal shares of [0, count), one share per thread. `grain` is the
// number of elements that are enough work for one thread: the number of shares is count / grain,
// rounded up, but at most thread_count().
//
// Every parallel region has all thread_count() threads, and threads without a share return at once.
// A region of fewer threads would make libgomp end the unused threads, and the next full region
// would create them again. That would happen several times in each run of a compiled step.
template <class Body>
void for_range(std::int64_t count, std::int64_t grain, Body&& body) {
  const int threads = thread_count();
  const std::int64_t parts =
      std::min<std::int64_t>(grain > 0 ? divide_up(count, grain) : 1, threads);
  if (parts <= 1) {
    if (count > 0) body(std::int64_t{0}, count);
    return;
  }
#pragma omp parallel num_threads(threads)
  // If OpenMP gives fewer threads than there are shares (OMP_DYNAMIC), a thread computes several
  // shares.
  for (std::int64_t part = omp_get_thread_num(); part < parts; part += omp_get_num_threads()) {
    const Range own = share(count, 1, part, parts);
    if (own.begin < own.end) body(own.begin, own.end);
  }
}

// Call body(piece) for each piece in [0, pieces). A thread gets consecutive pieces. There may be
// more pieces than threads. For example, a forked child has fewer threads than the process that
// built the kernel, but runs all pieces of the kernel.
template <class Body>
void for_pieces(std::int64_t pieces, Body&& body) {
  for_range(pieces, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t piece = begin; piece < end; ++piece) body(piece);
  });
}

}  // namespace ngd::device
