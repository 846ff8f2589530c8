// SPDX-License-Identifier: Apache-2.0
// The description of the hardware for which kernels are chosen and built.
#pragma once

#include <cstdint>

#include "base/simd.hpp"

namespace ngd::kernels {

// A plain value: a test may describe another machine than the one that it runs on. The cache sizes
// are those of Zen 4 with 16 MiB of L3. The rules that use them were measured there.
//
// Loops over tiles, and reductions, do not use this SIMD level. Their results are the same on all
// levels, and they use simd_level().
struct Machine {
  int threads = 1;
  SimdLevel simd = SimdLevel::Baseline;
  std::int64_t core_cache_bytes = 1 << 20;     // L2 of one core
  std::int64_t shared_cache_bytes = 16 << 20;  // L3
};

// Return the threads and the SIMD level that this process may use now, with the default cache
// sizes.
Machine this_machine();

}  // namespace ngd::kernels
