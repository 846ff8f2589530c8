// SPDX-License-Identifier: Apache-2.0
#include "base/simd.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace ngd {
namespace {

const std::vector<std::string> kAvx2{"avx2", "fma", "f16c", "bmi2"};
const std::vector<std::string> kAvx512{"avx512f", "avx512bw", "avx512dq", "avx512vl"};

// The level of a CPU that has `features`, except `masked`.
SimdLevel level_without(std::vector<std::string> features, const std::string& masked) {
  std::erase(features, masked);
  return level_of([&](std::string_view feature) {
    return std::find(features.begin(), features.end(), feature) != features.end();
  });
}

std::vector<std::string> all_features() {
  std::vector<std::string> all = kAvx2;
  all.insert(all.end(), kAvx512.begin(), kAvx512.end());
  return all;
}

TEST(Simd, LevelNeedsEachFeatureThatItsFlagsUse) {
  EXPECT_EQ(level_without({}, ""), SimdLevel::Baseline);
  EXPECT_EQ(level_without(kAvx2, ""), SimdLevel::Avx2);
  EXPECT_EQ(level_without(all_features(), ""), SimdLevel::Avx512);
  for (const std::string& masked : kAvx2)
    EXPECT_EQ(level_without(all_features(), masked), SimdLevel::Baseline) << masked;
  for (const std::string& masked : kAvx512)
    EXPECT_EQ(level_without(all_features(), masked), SimdLevel::Avx2) << masked;
}

}  // namespace
}  // namespace ngd
