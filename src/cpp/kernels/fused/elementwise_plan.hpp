// SPDX-License-Identifier: Apache-2.0
// How a kernel body is computed: the tiles, where each operand is, and the loops over a tile.
//
// Neighbouring axes are merged if every input is dense or constant over both. The result is rows
// along an inner axis. A tile is a piece of one row if rows are long, or several whole rows if they
// are short. A slot is the memory of a tile of values: the memory of an input or output, or a buffer
// of kTileBytes that stays in the first-level cache. Each loop reads and writes slots.
//
// elementwise_reduce.cpp reduces the values of some statements. Their tiles are kept until all loops
// are done. Then a row is the last axes that are all reduced or all kept. A tile must be a unit of
// the reduction: it never mixes blocks of rows, and a piece of a row is one block.
//
// elementwise_product.cpp has inputs that are matrix products, which are not in memory. Its tiles
// are any elements of a row of which it has the products.
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

// A loop over a tile: the work of one statement, or of a pair of statements.
struct TileLoop {
  TileFunction function;
  int a, b, c, out;  // slots; unused ones are `out`
};

// How an input reaches its slot.
enum class Reading : std::uint8_t {
  InPlace,    // the slot is the input's memory: the input is dense like the output
  InRow,      // the slot is the input's memory: the inner axis is dense, and tiles are within rows
  Once,       // all tiles have the same values: gathered when a thread begins
  PerRow,     // one value per row, and tiles are within rows: gathered when the row changes
  EveryTile,  // gathered for every tile
  Given,      // dense like the output: the caller of the walk has the values of each tile
};

struct InputPlan {
  Reading reading;
  int slot;
  std::size_t item;                   // bytes of an element
  std::vector<std::int64_t> strides;  // in elements, over the merged axes
};

struct OutputPlan {
  int slot;
  std::size_t item;
};

struct Constant {
  int slot;
  std::size_t item;
  std::uint64_t bits;  // the first `item` bytes are the value
};

struct Plan {
  explicit Plan(const KernelQuery& query);  // throws Refusal

  std::vector<std::int64_t> shape;  // merged axes; the last is the inner one
  std::int64_t rows = 1, inner = 1;
  std::int64_t rows_per_tile = 1;  // > 1: tiles of whole rows
  std::int64_t tiles_per_row = 1;  // > 1: tiles within rows
  std::int64_t tile_length = 0;    // elements of a full tile
  std::int64_t tiles = 0;
  std::int64_t grain = 1;  // the fewest tiles per thread

  std::vector<InputPlan> inputs;
  std::vector<OutputPlan> outputs;
  std::vector<Constant> constants;
  std::vector<std::int64_t> given;  // the inputs with Reading::Given
  std::vector<int> kept;            // the slots of reduced statements
  std::vector<int> buffer_of_slot;  // -1: the slot is the memory of an input or output
  std::vector<TileLoop> loops;
  std::vector<InPlace> in_place;  // see Kernel::in_place
};

}  // namespace ngd::kernels::fused
