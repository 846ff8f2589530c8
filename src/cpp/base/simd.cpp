// SPDX-License-Identifier: Apache-2.0
#include "base/simd.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "base/config.hpp"

namespace ngd {

namespace {

#define NGD_NAME(level, name, features, flags, ...) , #name
constexpr std::string_view kNames[] = {"baseline" NGD_SIMD_LEVELS(NGD_NAME, )};
#undef NGD_NAME

// Return the features in simd_levels.inc that this CPU has. In a build without SIMD levels, the
// result is empty.
std::vector<std::string_view> features_of_this_cpu() {
  std::vector<std::string_view> features_found;
#if defined(NGD_HAVE_X86_LEVELS)
  __builtin_cpu_init();
#define NGD_FEATURES(level, name, features, flags, ...) features
#define NGD_FEATURE(name) \
  if (__builtin_cpu_supports(#name) != 0) features_found.push_back(#name);
  NGD_SIMD_LEVELS(NGD_FEATURES, NGD_FEATURE)
#undef NGD_FEATURE
#undef NGD_FEATURES
#endif
  return features_found;
}

// Return the highest level of this CPU, but at most the level that NGD_SIMD names. An unknown name
// in NGD_SIMD sets no limit.
SimdLevel detect() {
  const SimdLevel best = level_of(features_of_this_cpu());
  const auto* const cap = std::find(std::begin(kNames), std::end(kNames), config::simd());
  return cap == std::end(kNames) ? best
                                 : std::min(best, static_cast<SimdLevel>(cap - std::begin(kNames)));
}

}  // namespace

SimdLevel level_of(std::span<const std::string_view> cpu_features) {
  const auto has_feature = [&](std::string_view feature) {
    return std::find(cpu_features.begin(), cpu_features.end(), feature) != cpu_features.end();
  };
  SimdLevel best = SimdLevel::Baseline;
#define NGD_FEATURE(name) &&has_feature(#name)
#define NGD_TRY_LEVEL(level, name, features, flags, ...) \
  if (!(true features)) return best;                     \
  best = SimdLevel::level;
  NGD_SIMD_LEVELS(NGD_TRY_LEVEL, NGD_FEATURE)
#undef NGD_TRY_LEVEL
#undef NGD_FEATURE
  return best;
}

SimdLevel simd_level() noexcept {
  static const SimdLevel level = detect();
  return level;
}

std::string_view name_of(SimdLevel level) noexcept { return kNames[static_cast<int>(level)]; }

}  // namespace ngd
