// SPDX-License-Identifier: Apache-2.0
#include "kernels/fused/tiles.hpp"

#include "base/simd.hpp"

namespace ngd::kernels::fused {

const TileTable& tile_table() { return NGD_SIMD_SELECT(tile_table)(); }

}  // namespace ngd::kernels::fused
