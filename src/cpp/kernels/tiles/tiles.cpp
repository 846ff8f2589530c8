// SPDX-License-Identifier: Apache-2.0
#include "kernels/tiles/tiles.hpp"

#include "base/simd.hpp"

namespace ngd::kernels::tiles {

const TileTable& tile_table() { return NGD_SIMD_SELECT(simd_level(), tile_table)(); }

TileFunction widening(DType dtype) {
  if (dtype == DType::F16) return tile_table().widen_f16;
  return dtype == DType::BF16 ? tile_table().widen_bf16 : nullptr;
}

TileFunction narrowing(DType dtype) {
  if (dtype == DType::F16) return tile_table().narrow_f16;
  return dtype == DType::BF16 ? tile_table().narrow_bf16 : nullptr;
}

}  // namespace ngd::kernels::tiles
