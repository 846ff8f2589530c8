// SPDX-License-Identifier: Apache-2.0
// The tile loops of the elementwise kernel: one function an opcode and dtype, over dense tiles.
#pragma once

#include <cstdint>

#include "base/dtype.hpp"
#include "base/simd.hpp"

namespace ngd::kernels::tiles {

enum class Opcode : std::uint8_t {
#define NGD_OP(name, operands, domain, result, expression) name,
#include "kernels/tiles/opcodes.inc"
#undef NGD_OP
  cast,
};
inline constexpr int kTabledOpcodes = static_cast<int>(Opcode::cast);

// out[i] = f(a[i], b[i], c[i]) for i < count; operands that the opcode has not are not read.
// `out` may be any of the operands where the element sizes are equal.
using TileFunction = void (*)(const void* a, const void* b, const void* c, void* out,
                              std::int64_t count);

// Two instructions in one loop, of f32 and f64: second(first(a, b), c). They round as the two do.
enum class First : std::uint8_t { Add, Subtract, Multiply };
enum class Second : std::uint8_t { Add, Subtract, SubtractFrom, Multiply, Relu };
inline constexpr int kFirsts = 3, kSeconds = 5;

// Two-byte floats are float32 in tiles, rounded to what their dtype holds. Null: outside the
// opcode's domain. Bool is one byte, 0 or 1.
struct TileTable {
  TileFunction operations[kTabledOpcodes][kDTypeCount];  // rows of F16 and BF16: null
  TileFunction casts[kDTypeCount][kDTypeCount];          // [from][to], without F16 and BF16
  TileFunction pairs[kFirsts][kSeconds][2];              // [2]: of f32, of f64
  TileFunction where_greater[2];                         // a > b ? c : 0
  TileFunction widen_f16, widen_bf16;                    // storage -> float32
  TileFunction narrow_f16, narrow_bf16;                  // float32 -> storage
  TileFunction round_f16, round_bf16;                    // float32 -> float32
};

const TileTable& tile_table();  // of simd_level()

// Between storage and tiles; null: dtype is no two-byte float.
TileFunction widening(DType dtype);
TileFunction narrowing(DType dtype);

NGD_DECLARE_SIMD_LEVELS(const TileTable& tile_table());

}  // namespace ngd::kernels::tiles
