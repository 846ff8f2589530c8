// SPDX-License-Identifier: Apache-2.0
#include "base/simd.hpp"

#include "base/config.hpp"

namespace ngd {

namespace {

SimdLevel detect() noexcept {
#if defined(NGD_HAVE_X86_LEVELS)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi2");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  const SimdLevel best = avx512 ? SimdLevel::Avx512 : avx2 ? SimdLevel::Avx2 : SimdLevel::Baseline;
  const std::string cap = config::simd();
  if (cap == "baseline") return SimdLevel::Baseline;
  if (cap == "avx2" && best == SimdLevel::Avx512) return SimdLevel::Avx2;
  return best;
#else
  return SimdLevel::Baseline;
#endif
}

}  // namespace

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
