// SPDX-License-Identifier: Apache-2.0
// The tile loops of the elementwise kernels. A tile is a short dense array that stays in the
// first-level cache. For each opcode and dtype, there is one function: a loop over a tile.
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

// Store f(a[i], b[i], c[i]) in out[i], for i < count. An opcode with fewer operands does not read
// the others. `out` may be the memory of an operand if both have elements of the same size.
using TileFunction = void (*)(const void* a, const void* b, const void* c, void* out,
                              std::int64_t count);

// A pair is two statements of f32 or f64 that one loop computes, second(first(a, b), c). Its
// results have the same bits as those of two loops. The enumerators of First are the operations of
// the first statement, and those of Second are the operations of the second statement.
enum class First : std::uint8_t { Add, Subtract, Multiply };
enum class Second : std::uint8_t { Add, Subtract, SubtractFrom, Multiply, Relu };
inline constexpr int kFirsts = 3, kSeconds = 5;

// The functions of one SIMD level. In tiles, 16-bit floats are float32, rounded to values of their
// dtype, and bool is one byte, 0 or 1. A function is null if the opcode is not defined for the
// dtype.
struct TileTable {
  TileFunction operations[kTabledOpcodes][kDTypeCount];  // null for F16 and BF16
  TileFunction casts[kDTypeCount][kDTypeCount];          // [from][to], null for F16 and BF16
  TileFunction pairs[kFirsts][kSeconds][2];              // last index: 0 for f32, 1 for f64
  TileFunction where_greater[2];                         // a > b ? c : 0, for f32 and f64
  TileFunction widen_f16, widen_bf16;                    // 16-bit floats to float32
  TileFunction narrow_f16, narrow_bf16;                  // float32 to 16-bit floats
  TileFunction round_f16, round_bf16;                    // float32 to float32, rounded to the dtype
};

const TileTable& tile_table();  // the functions of simd_level(), the level of this process

// Tiles hold 16-bit floats as float32. widening() returns the function that converts 16-bit floats
// of a dtype to float32, and narrowing() the function that converts them back. Both return null if
// the dtype is not a 16-bit float.
TileFunction widening(DType dtype);
TileFunction narrowing(DType dtype);

NGD_DECLARE_SIMD_LEVELS(const TileTable& tile_table());

}  // namespace ngd::kernels::tiles
