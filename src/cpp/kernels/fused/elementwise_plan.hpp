// SPDX-License-Identifier: Apache-2.0
// The plan of a fused elementwise kernel: how it computes a kernel body, which is a list of
// elementwise statements.
//
// A fused kernel does not compute one statement after the other over whole arrays. It divides the
// arrays into tiles, and computes all statements for one tile, then for the next one. So the values
// of statements stay in the first-level cache, and are not written to memory and read again.
//
// Neighbouring axes are merged to one axis if each input has one stride over both of them (0 if the
// input is broadcast along both). The last merged axis is the inner axis, and the elements along it
// are a row. A tile is a piece of one row if rows are long, and several whole rows if they are
// short. A slot is the memory of a tile of values: a part of an input or output, or a buffer of
// kTileBytes. Each loop computes one statement, or a pair of statements, for a tile. It reads
// slots, and writes one.
//
// elementwise_reduce.cpp also reduces the values of some statements. It combines the values of a
// tile with accumulators (partial results) when all loops of the tile are done. So the buffers of
// these values are not reused for other values before that. For this kernel, the inner axis must be
// all the reduced axes at the end of the shape, or all the kept (not reduced) axes at the end. The
// reduction combines the values in blocks (reduce/loops.hpp). If the last axes are reduced, a block
// is kBlockBytes of a row. A tile that is a piece of a row is one block (the last piece may be
// shorter). If the last axes are kept, a block is kRowBlock rows, and all rows of a tile are in the
// same block.
//
// elementwise_product.cpp has inputs that are matrix products. The products are not in memory: the
// kernel computes a block of each product, and then runs the body for the block. Each tile is a
// piece of one row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/fused/kernel_body.hpp"
#include "kernels/kernel.hpp"

namespace ngd::kernels::fused {

using tiles::TileFunction;

inline constexpr std::int64_t kTileBytes = 4096;
inline constexpr int kMaxBuffers = 64, kMaxSlots = 256;

// A loop over a tile. It computes one statement, or a pair of statements of which the second uses
// the value of the first.
struct TileLoop {
  TileFunction function;
  // The slots (tiles in memory) of the operands and of the result. An unused operand has
  // the slot of the result.
  int a, b, c, out;
};

// The memory from which loops read the values of an input for one tile: the memory of the input, or
// a buffer to which the values are copied.
enum class Reading : std::uint8_t {
  InPlace,    // the input's memory: the input is dense, like the outputs
  InRow,      // the input's memory: each tile is a dense piece of one row
  Once,       // a buffer, filled when a thread begins: all tiles have the same values
  PerRow,     // a buffer, filled with the one value of a row when the row changes
  EveryTile,  // a buffer, filled for every tile
  Given,      // the memory of a matrix product, which the caller of TileWalk passes
};

// The plan for one input of the body: the location and the layout of its values.
struct InputPlan {
  Reading reading;
  int slot;
  std::size_t item;                   // bytes per element
  std::vector<std::int64_t> strides;  // in elements, over the merged axes
};

struct OutputPlan {
  int slot;
  std::size_t item;
};

// An immediate of the body: a constant that is a part of the body's text. Its slot, the memory of
// one tile, is filled with the value.
struct Constant {
  int slot;
  std::size_t item;
  std::uint64_t bits;  // the first `item` bytes are the value
};

struct Plan {
  explicit Plan(const KernelQuery& query);  // throws Refusal

  std::vector<std::int64_t> shape;  // lengths of the merged axes; the last one is `inner`
  std::int64_t rows = 1, inner = 1;
  std::int64_t rows_per_tile = 1;  // if > 1, a tile is several whole rows
  std::int64_t tiles_per_row = 1;  // if > 1, a tile is a piece of one row
  std::int64_t tile_length = 0;    // elements of a full tile
  std::int64_t tiles = 0;
  std::int64_t grain = 1;  // the minimum number of tiles per thread

  std::vector<InputPlan> inputs;
  std::vector<OutputPlan> outputs;
  std::vector<Constant> constants;
  std::vector<std::int64_t> given;  // the numbers of the inputs that are matrix products
  std::vector<int> kept;            // kept[k] is the slot (a tile in memory) that reduction k reads
  // The number of the buffer that is the memory of each slot; -1 for a part of an input or output.
  std::vector<int> buffer_of_slot;
  std::vector<TileLoop> loops;
  std::vector<InPlace> in_place;  // pairs of an output and an input that may share memory
};

}  // namespace ngd::kernels::fused
