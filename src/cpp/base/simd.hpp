// SPDX-License-Identifier: Apache-2.0
// SIMD levels. CMake (ngd_add_simd_sources) compiles each file NAME.simd.cpp once per level, with
// NGD_SIMD_LEVEL defined as the namespace of its functions. The level is chosen at run time.
//
// A *.simd.cpp file keeps its functions static or in NGD_SIMD_LEVEL. Otherwise the linker could
// pick the copy of a higher level for code of the baseline. All other files are compiled for the
// baseline.
#pragma once

#include <span>
#include <string_view>

#include "base/simd_levels.inc"

namespace ngd {

enum class SimdLevel {
  Baseline,
#define NGD_ENUMERATOR(level, name, features, flags, ...) level,
  NGD_SIMD_LEVELS(NGD_ENUMERATOR, )
#undef NGD_ENUMERATOR
};

// Return the highest level that a CPU with these features can run.
SimdLevel level_of(std::span<const std::string_view> cpu_features);

// Return the highest level that this CPU can run, that the build contains, and that NGD_SIMD
// allows.
SimdLevel simd_level() noexcept;
std::string_view name_of(SimdLevel level) noexcept;  // "baseline", or a name in simd_levels.inc

// NGD_BUILT_SIMD_LEVELS(ROW, ...) expands the macro ROW once for each level of simd_levels.inc that
// the build contains. ROW gets the columns of the level's row in simd_levels.inc, and then the
// further arguments of NGD_BUILT_SIMD_LEVELS.
#if defined(NGD_HAVE_X86_LEVELS)
#define NGD_BUILT_SIMD_LEVELS(ROW, ...) NGD_SIMD_LEVELS(ROW, , __VA_ARGS__)
#else
#define NGD_BUILT_SIMD_LEVELS(ROW, ...)
#endif

// NGD_DECLARE_SIMD_LEVELS(declaration) declares a function in the namespace of each SIMD level.
#define NGD_DECLARE_IN_LEVEL(level, name, features, flags, ...) \
  namespace name {                                              \
  __VA_ARGS__;                                                  \
  }
#define NGD_DECLARE_SIMD_LEVELS(...)                        \
  NGD_DECLARE_IN_LEVEL(Baseline, baseline, , , __VA_ARGS__) \
  NGD_BUILT_SIMD_LEVELS(NGD_DECLARE_IN_LEVEL, __VA_ARGS__)

// NGD_SIMD_SELECT(level, function) is a pointer to the function in the namespace of the SIMD level:
// avx2::function for SimdLevel::Avx2. It expands to a chain of ?: with one NGD_IF_LEVEL per level.
#define NGD_IF_LEVEL(row, name, features, flags, level, function) \
  (level) == ::ngd::SimdLevel::row ? &name::function:
#define NGD_SIMD_SELECT(level, function) \
  (static_cast<void>(level),             \
   NGD_BUILT_SIMD_LEVELS(NGD_IF_LEVEL, level, function) & baseline::function)

}  // namespace ngd
