// SPDX-License-Identifier: Apache-2.0
// Casts between the dtype of an array and the dtype that ngd's GEMM computes in: f32 for 16-bit
// floats, u32 for small integers and bool.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.hpp"
#include "device/team.hpp"
#include "kernels/tiles/tiles.hpp"

namespace ngd::kernels::gemm {

// Return the cast from the dtype of an array to the dtype in which ngd's GEMM computes, or null if
// the two dtypes are the same.
inline tiles::TileFunction cast_to_computed(DType dtype) {
  if (is_half(dtype)) return tiles::widening(dtype);
  if (size_of(dtype) >= 4) return nullptr;
  return tiles::tile_table().casts[static_cast<int>(dtype)][static_cast<int>(DType::U32)];
}
// Return the cast from the dtype in which ngd's GEMM computes to the dtype of an array, or null if
// the two dtypes are the same.
inline tiles::TileFunction cast_to_stored(DType dtype) {
  if (is_half(dtype)) return tiles::narrowing(dtype);
  if (size_of(dtype) >= 4) return nullptr;
  return tiles::tile_table().casts[static_cast<int>(DType::U32)][static_cast<int>(dtype)];
}

// Cast `count` elements, divided among the threads.
inline void cast_elements(tiles::TileFunction cast, const void* from, std::size_t from_item_bytes,
                          void* to, std::size_t to_item_bytes, std::int64_t count) {
  constexpr std::int64_t kMinElementsPerThread = 32768;
  device::for_range(count, kMinElementsPerThread, [&](std::int64_t begin, std::int64_t end) {
    cast(static_cast<const std::byte*>(from) + begin * static_cast<std::int64_t>(from_item_bytes),
         nullptr, nullptr,
         static_cast<std::byte*>(to) + begin * static_cast<std::int64_t>(to_item_bytes),
         end - begin);
  });
}

}  // namespace ngd::kernels::gemm
