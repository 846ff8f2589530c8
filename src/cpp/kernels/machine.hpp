// SPDX-License-Identifier: Apache-2.0
// The description of the hardware for which kernels are chosen and built.
#pragma once

#include <cstdint>

#include "base/simd.hpp"

namespace ngd::kernels {

// The hardware for which a kernel is chosen and built. A test may describe another machine than the
// one that it runs on. The default cache sizes are those of Zen 4 with 16 MiB of L3, because the
// rules that use the sizes were measured there.
//
// Tile loops and reductions ignore the member `simd`, and use simd_level(), the SIMD level of this
// process. Their results have the same bits on all levels, so a test of their results does not need
// to set `simd`.
struct Machine {
  int threads = 1;
  SimdLevel simd = SimdLevel::Baseline;
  std::int64_t core_cache_bytes = 1 << 20;     // L2 of one core
  std::int64_t shared_cache_bytes = 16 << 20;  // L3
};

// Return a Machine with the number of threads and the SIMD level that this process may use now. The
// cache sizes are the defaults.
Machine this_machine();

}  // namespace ngd::kernels
