// SPDX-License-Identifier: Apache-2.0
#include "base/simd.hpp"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

namespace ngd {
namespace {

using Features = std::vector<std::string_view>;

const Features kAvx2{"avx2", "fma", "f16c", "bmi2"};
const Features kAvx512{"avx512f", "avx512bw", "avx512dq", "avx512vl"};

// The level of a CPU that has `features`, except `masked`.
SimdLevel level_without(Features features, std::string_view masked) {
  std::erase(features, masked);
  return level_of(features);
}

Features all_features() {
  Features all = kAvx2;
  all.insert(all.end(), kAvx512.begin(), kAvx512.end());
  return all;
}

TEST(Simd, LevelNeedsEachFeatureThatItsFlagsUse) {
  EXPECT_EQ(level_without({}, ""), SimdLevel::Baseline);
  EXPECT_EQ(level_without(kAvx2, ""), SimdLevel::Avx2);
  EXPECT_EQ(level_without(all_features(), ""), SimdLevel::Avx512);
  for (const std::string_view masked : kAvx2)
    EXPECT_EQ(level_without(all_features(), masked), SimdLevel::Baseline) << masked;
  for (const std::string_view masked : kAvx512)
    EXPECT_EQ(level_without(all_features(), masked), SimdLevel::Avx2) << masked;
}

TEST(Simd, NamesAreThoseOfTheTable) {
  EXPECT_EQ(name_of(SimdLevel::Baseline), "baseline");
  EXPECT_EQ(name_of(SimdLevel::Avx2), "avx2");
  EXPECT_EQ(name_of(SimdLevel::Avx512), "avx512");
}

NGD_DECLARE_SIMD_LEVELS(SimdLevel own_level());

#define NGD_DEFINE(level, name, ...) \
  SimdLevel name::own_level() { return SimdLevel::level; }
NGD_DEFINE(Baseline, baseline)
NGD_BUILT_SIMD_LEVELS(NGD_DEFINE, )
#undef NGD_DEFINE

TEST(Simd, SelectsTheFunctionOfTheLevel) {
  EXPECT_EQ(NGD_SIMD_SELECT(simd_level(), own_level)(), simd_level());
}

}  // namespace
}  // namespace ngd
