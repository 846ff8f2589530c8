// SPDX-License-Identifier: Apache-2.0
// SIMD levels. A file NAME.simd.cpp is compiled once a level, each time with NGD_SIMD_LEVEL naming
// the namespace that holds its functions (CMake: ngd_add_simd_sources); a plain .cpp beside it
// picks one of them by simd_level(). No file outside *.simd.cpp is compiled for more than the
// baseline, and *.simd.cpp files keep their functions static or in NGD_SIMD_LEVEL, so that no code
// of a higher level can leak into the baseline through the linker.
#pragma once

#include <functional>
#include <string_view>

namespace ngd {

enum class SimdLevel { Baseline, Avx2, Avx512 };

// The highest level whose features (base/simd_features.inc) are all present in a CPU.
SimdLevel level_of(const std::function<bool(std::string_view feature)>& has);

// The highest level that this CPU runs, that was compiled in, and that NGD_SIMD allows.
SimdLevel simd_level() noexcept;
std::string_view name_of(SimdLevel level) noexcept;  // "baseline", "avx2", "avx512"

// NGD_SIMD_SELECT(function): the function of that name in the namespace of simd_level().
#if defined(NGD_HAVE_X86_LEVELS)
#define NGD_SIMD_SELECT(function)                                      \
  (::ngd::simd_level() == ::ngd::SimdLevel::Avx512 ? &avx512::function \
   : ::ngd::simd_level() == ::ngd::SimdLevel::Avx2 ? &avx2::function   \
                                                   : &baseline::function)
#else
#define NGD_SIMD_SELECT(function) (&baseline::function)
#endif

}  // namespace ngd
