// SPDX-License-Identifier: Apache-2.0
#include "kernels/fallback/philox.hpp"

#include "base/simd_loops.hpp"

namespace ngd::kernels::fallback::NGD_SIMD_LEVEL {

namespace {

// A vector of 32-bit words, each in a 64-bit lane. The product of two words has 64 bits, so it
// stays in its lane and needs no shuffles.
using Words = VectorOf<std::uint64_t>::type;

constexpr std::int64_t kLanes = sizeof(Words) / sizeof(std::uint64_t);
constexpr int kRounds = 10;
constexpr std::uint64_t kMultiplier0 = 0xD2511F53u, kMultiplier1 = 0xCD9E8D57u;
constexpr std::uint64_t kLow = 0xFFFFFFFFu;
constexpr std::uint32_t kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;

// The counters of two vectors of blocks (a block is four random words, computed from one counter).
// The computations of the two vectors are independent, so the latency of one vector's products is
// hidden by the other vector's products.
struct Counters {
  Words word[4][2];
};

// Apply the ten rounds of Philox to the counters, which become the random words. key0 is the low
// word of the key.
NGD_INLINE void encrypt(Counters& c, std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < kRounds; ++round, key0 += kWeyl0, key1 += kWeyl1) {
    NGD_UNROLL
    for (int v = 0; v < 2; ++v) {
      const Words product0 = c.word[0][v] * kMultiplier0;
      const Words product1 = c.word[2][v] * kMultiplier1;
      c.word[0][v] = (product1 >> 32) ^ c.word[1][v] ^ std::uint64_t{key0};
      c.word[1][v] = product1 & kLow;
      c.word[2][v] = (product0 >> 32) ^ c.word[3][v] ^ std::uint64_t{key1};
      c.word[3][v] = product0 & kLow;
    }
  }
}

}  // namespace

// Implement PhiloxFunction of philox.hpp.
void philox(std::uint64_t key, std::uint64_t stream, std::uint64_t first_block, std::int64_t blocks,
            std::uint32_t* words) {
  constexpr Words kCount = {0, 1, 2, 3, 4, 5, 6, 7};
  for (std::int64_t begin = 0; begin < blocks; begin += 2 * kLanes) {
    Counters c;
    NGD_UNROLL
    for (int v = 0; v < 2; ++v) {
      const Words block = kCount + (first_block + static_cast<std::uint64_t>(begin + v * kLanes));
      c.word[0][v] = block & kLow;
      c.word[1][v] = block >> 32;
      c.word[2][v] = Words{} + (stream & kLow);
      c.word[3][v] = Words{} + (stream >> 32);
    }
    encrypt(c, static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32));
    const std::int64_t left = blocks - begin;
    for (std::int64_t i = 0; i < (left < 2 * kLanes ? left : 2 * kLanes); ++i)
      for (int w = 0; w < 4; ++w)
        words[(begin + i) * 4 + w] = static_cast<std::uint32_t>(c.word[w][i / kLanes][i % kLanes]);
  }
}

}  // namespace ngd::kernels::fallback::NGD_SIMD_LEVEL
