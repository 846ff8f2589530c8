// SPDX-License-Identifier: Apache-2.0
// The register tile for the SIMD level of this CPU.
//
// tile.hpp does not include this: the files compiled for one SIMD level include tile.hpp, and inline
// functions there would be compiled for that level.
#pragma once

#include <type_traits>

#include "base/simd.hpp"
#include "kernels/gemm/tile.hpp"

namespace ngd::kernels::gemm {

inline const GemmTiles& simd_tiles() { return NGD_SIMD_SELECT(gemm_tiles)(); }

template <class T>
const GemmTile<T>& tile_of() {
  if constexpr (std::is_same_v<T, float>)
    return simd_tiles().f32;
  else if constexpr (std::is_same_v<T, double>)
    return simd_tiles().f64;
  else if constexpr (std::is_same_v<T, std::uint32_t>)
    return simd_tiles().u32;
  else
    return simd_tiles().u64;
}

}  // namespace ngd::kernels::gemm
