// SPDX-License-Identifier: Apache-2.0
// Philox 4x32-10: J. Salmon, M. Moraes, R. Dror and D. Shaw, "Parallel random numbers: as easy as
// 1, 2, 3" (SC'11), section 3.3.
#pragma once

#include <cstdint>

#include "base/simd.hpp"

namespace ngd::kernels::fallback {

// words[4 i .. 4 i + 3] = the output block of the 128-bit counter whose words 0 and 1 are
// first_block + i and whose words 2 and 3 are `stream`, all low word first, under `key`.
using PhiloxFunction = void (*)(std::uint64_t key, std::uint64_t stream, std::uint64_t first_block,
                                std::int64_t blocks, std::uint32_t* words);

NGD_DECLARE_SIMD_LEVELS(void philox(std::uint64_t, std::uint64_t, std::uint64_t, std::int64_t,
                                    std::uint32_t*));

}  // namespace ngd::kernels::fallback
