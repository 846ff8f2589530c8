// SPDX-License-Identifier: Apache-2.0
#include "base/simd.hpp"

#include <string>

#include "base/config.hpp"

namespace ngd {

namespace {

struct Feature {
  std::string_view level, name;
};

constexpr Feature kFeatures[] = {
#define NGD_SIMD_FEATURE(level, name) {#level, #name},
#include "base/simd_features.inc"
#undef NGD_SIMD_FEATURE
};

bool cpu_has([[maybe_unused]] std::string_view feature) {
#if defined(NGD_HAVE_X86_LEVELS)
  __builtin_cpu_init();
#define NGD_SIMD_FEATURE(level, name) \
  if (feature == #name) return __builtin_cpu_supports(#name) != 0;
#include "base/simd_features.inc"
#undef NGD_SIMD_FEATURE
#endif
  return false;
}

SimdLevel detect() {
  const SimdLevel best = level_of(cpu_has);
  const std::string cap = config::simd();
  if (cap == "baseline") return SimdLevel::Baseline;
  if (cap == "avx2" && best == SimdLevel::Avx512) return SimdLevel::Avx2;
  return best;
}

}  // namespace

SimdLevel level_of(const std::function<bool(std::string_view feature)>& has) {
  SimdLevel best = SimdLevel::Baseline;
  for (const SimdLevel level : {SimdLevel::Avx2, SimdLevel::Avx512}) {
    for (const Feature& feature : kFeatures)
      if (feature.level == name_of(level) && !has(feature.name)) return best;
    best = level;
  }
  return best;
}

SimdLevel simd_level() noexcept {
  static const SimdLevel level = detect();
  return level;
}

std::string_view name_of(SimdLevel level) noexcept {
  switch (level) {
    case SimdLevel::Avx2:
      return "avx2";
    case SimdLevel::Avx512:
      return "avx512";
    case SimdLevel::Baseline:
      break;
  }
  return "baseline";
}

}  // namespace ngd
