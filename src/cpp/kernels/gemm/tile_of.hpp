// SPDX-License-Identifier: Apache-2.0
// The function tile_of(), which returns the register tile of a SIMD level and a type.
//
// tile_of() is not in tile.hpp, because files that are compiled for one SIMD level include
// tile.hpp. The inline functions of this header would then also be compiled for that level, and the
// linker could pick that copy for code that must run on every supported CPU.
#pragma once

#include <type_traits>

#include "base/simd.hpp"
#include "kernels/gemm/tile.hpp"

namespace ngd::kernels::gemm {

template <class T>
const GemmTile<T>& tile_of(SimdLevel level) {
  const GemmTiles& tiles = NGD_SIMD_SELECT(level, gemm_tiles)();
  if constexpr (std::is_same_v<T, float>)
    return tiles.f32;
  else if constexpr (std::is_same_v<T, double>)
    return tiles.f64;
  else if constexpr (std::is_same_v<T, std::uint32_t>)
    return tiles.u32;
  else
    return tiles.u64;
}

}  // namespace ngd::kernels::gemm
