// SPDX-License-Identifier: Apache-2.0
#include "base/checksum.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace ngd {
namespace {

using Pair = std::pair<std::uint64_t, std::uint64_t>;

Pair of(const std::vector<unsigned char>& bytes) {
  const Checksum found = checksum(bytes.data(), bytes.size());
  return {found.low, found.high};
}

std::vector<unsigned char> random_bytes(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<unsigned char> bytes(count);
  for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
  return bytes;
}

TEST(Checksum, DiffersInEachBitOfTheBytes) {
  for (const std::size_t count : {1u, 7u, 8u, 63u, 64u, 1023u, 1024u, 1025u, 2048u, 2100u}) {
    std::vector<unsigned char> bytes = random_bytes(count, 1);
    std::set<std::uint64_t> low, high;
    for (std::size_t bit = 0; bit < 8 * count; ++bit) {
      bytes[bit / 8] ^= static_cast<unsigned char>(1u << bit % 8);
      const Pair found = of(bytes);
      low.insert(found.first);
      high.insert(found.second);
      bytes[bit / 8] ^= static_cast<unsigned char>(1u << bit % 8);
    }
    EXPECT_EQ(low.size(), 8 * count);  // all values are different
    EXPECT_EQ(high.size(), 8 * count);
  }
}

TEST(Checksum, DependsOnTheNumberOfZeros) {
  std::set<Pair> found;
  for (std::size_t count = 0; count <= 3000; ++count)
    found.insert(of(std::vector<unsigned char>(count)));
  EXPECT_EQ(found.size(), 3001u);
}

TEST(Checksum, DependsOnTheOrderOfWordsStripesAndBlocks) {
  const std::vector<unsigned char> bytes = random_bytes(4096, 2);
  for (const std::size_t part : {8u, 64u, 1024u}) {
    for (std::size_t other = part; other < bytes.size(); other += part) {
      std::vector<unsigned char> swapped = bytes;
      std::swap_ranges(swapped.begin(), swapped.begin() + static_cast<std::ptrdiff_t>(part),
                       swapped.begin() + static_cast<std::ptrdiff_t>(other));
      EXPECT_NE(of(swapped), of(bytes)) << part << " bytes at 0 and " << other;
    }
  }
}

TEST(Checksum, DoesNotDependOnTheAddress) {
  const std::vector<unsigned char> bytes = random_bytes(5000, 3);
  std::vector<unsigned char> room(bytes.size() + 64);
  for (std::size_t at = 0; at < 64; ++at) {
    std::copy(bytes.begin(), bytes.end(), room.begin() + static_cast<std::ptrdiff_t>(at));
    const Checksum found = checksum(room.data() + at, bytes.size());
    EXPECT_EQ(Pair(found.low, found.high), of(bytes));
  }
}

}  // namespace
}  // namespace ngd
