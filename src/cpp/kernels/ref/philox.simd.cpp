// SPDX-License-Identifier: Apache-2.0
#include "kernels/ref/philox.hpp"

namespace ngd::kernels::ref::NGD_SIMD_LEVEL {

namespace {

constexpr std::int64_t kTogether = 16;
constexpr int kRounds = 10;
constexpr std::uint32_t kMultiplier0 = 0xD2511F53u, kMultiplier1 = 0xCD9E8D57u;
constexpr std::uint32_t kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;

struct Counters {
  std::uint32_t word[4][kTogether];
};

void encrypt(Counters& c, std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < kRounds; ++round) {
    for (std::int64_t i = 0; i < kTogether; ++i) {
      const std::uint64_t product0 = std::uint64_t{kMultiplier0} * c.word[0][i];
      const std::uint64_t product1 = std::uint64_t{kMultiplier1} * c.word[2][i];
      const std::uint32_t word1 = c.word[1][i], word3 = c.word[3][i];
      c.word[0][i] = static_cast<std::uint32_t>(product1 >> 32) ^ word1 ^ key0;
      c.word[1][i] = static_cast<std::uint32_t>(product1);
      c.word[2][i] = static_cast<std::uint32_t>(product0 >> 32) ^ word3 ^ key1;
      c.word[3][i] = static_cast<std::uint32_t>(product0);
    }
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
}

}  // namespace

void philox(std::uint64_t key, std::uint64_t stream, std::uint64_t first_block, std::int64_t blocks,
            std::uint32_t* words) {
  for (std::int64_t begin = 0; begin < blocks; begin += kTogether) {
    Counters c;
    for (std::int64_t i = 0; i < kTogether; ++i) {
      const std::uint64_t block = first_block + static_cast<std::uint64_t>(begin + i);
      c.word[0][i] = static_cast<std::uint32_t>(block);
      c.word[1][i] = static_cast<std::uint32_t>(block >> 32);
      c.word[2][i] = static_cast<std::uint32_t>(stream);
      c.word[3][i] = static_cast<std::uint32_t>(stream >> 32);
    }
    encrypt(c, static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32));
    const std::int64_t used = blocks - begin < kTogether ? blocks - begin : kTogether;
    for (std::int64_t i = 0; i < used; ++i)
      for (int w = 0; w < 4; ++w) words[(begin + i) * 4 + w] = c.word[w][i];
  }
}

}  // namespace ngd::kernels::ref::NGD_SIMD_LEVEL
