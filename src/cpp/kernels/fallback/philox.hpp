// SPDX-License-Identifier: Apache-2.0
// The random number generator Philox 4x32-10: J. Salmon, M. Moraes, R. Dror and D. Shaw, "Parallel
// random numbers: as easy as 1, 2, 3" (SC'11), section 3.3. It applies 10 rounds to a counter of
// four words of 32 bits.
#pragma once

#include <cstdint>

#include "base/simd.hpp"

namespace ngd::kernels::fallback {

// Compute `blocks` blocks of four random words. Block i, in words[4 i .. 4 i + 3], is the output of
// Philox for a counter of 128 bits. The low 64 bits of the counter are first_block + i, and the
// high 64 bits are `stream`. `key` is the 64-bit key of the generator.
using PhiloxFunction = void (*)(std::uint64_t key, std::uint64_t stream, std::uint64_t first_block,
                                std::int64_t blocks, std::uint32_t* words);

NGD_DECLARE_SIMD_LEVELS(void philox(std::uint64_t, std::uint64_t, std::uint64_t, std::int64_t,
                                    std::uint32_t*));

}  // namespace ngd::kernels::fallback
