// SPDX-License-Identifier: Apache-2.0
// The plan of a fused elementwise kernel: how it computes a kernel body.
//
// A fused kernel does not compute one statement after the other over whole arrays. It divides the
// arrays into tiles, and computes all statements for one tile, then for the next one. So the values
// of statements stay in the first-level cache, and are not written to memory and read again.
//
// Neighbouring axes are merged if every input is dense or constant over both. The result is a
// matrix of rows along the inner axis. A tile is a piece of one row if rows are long, and several
// whole rows if they are short. A slot is the memory of a tile of values: a part of an input or
// output, or a buffer of kTileBytes. Each loop computes one statement, or a pair of statements, for
// a tile. It reads slots, and writes one.
//
// elementwise_reduce.cpp also reduces the values of some statements: it adds the values of a tile
// to accumulators when all loops of the tile are done. So the buffers of these values are not
// reused for other values before that. In this kernel, the last axes that are all reduced, or all
// kept, are merged to one axis, the axis of the plan's rows. The reduction adds the values in
// blocks (reduce/loops.hpp), and no tile may be in two blocks. If the last axes are reduced, a
// block is kBlockBytes of a row: a tile that is a piece of a row is one block (the last piece may
// be shorter). If the last axes are kept, a block is kRowBlock rows: all rows of a tile belong to
// the same block.
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

// A loop over a tile: the work of one statement, or of a pair of statements.
struct TileLoop {
  TileFunction function;
  int a, b, c, out;  // slots of the operands and the result; unused operands are `out`
};

// The location from which a loop reads the values of an input. An input's slot is the memory of one
// tile of its values. "Gathered" means that the values are copied to a buffer, which is the slot.
enum class Reading : std::uint8_t {
  InPlace,    // the slot is the input's memory, because the input has the strides of the output
  InRow,      // the slot is the input's memory, because each tile is a dense piece of one row
  Once,       // gathered when a thread begins, because all tiles have the same values
  PerRow,     // gathered when the row changes: one value per row, and tiles are within rows
  EveryTile,  // gathered for every tile
  Given,      // the caller of the walk passes the values of each tile, dense as in the output
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

// An immediate of the body: a constant that is a part of the body's text. Its slot is filled with
// the value.
struct Constant {
  int slot;
  std::size_t item;
  std::uint64_t bits;  // the first `item` bytes are the value
};

struct Plan {
  explicit Plan(const KernelQuery& query);  // throws Refusal

  std::vector<std::int64_t> shape;  // merged axes; the last is the inner one
  std::int64_t rows = 1, inner = 1;
  std::int64_t rows_per_tile = 1;  // if > 1, a tile is several whole rows
  std::int64_t tiles_per_row = 1;  // if > 1, a tile is a piece of one row
  std::int64_t tile_length = 0;    // elements of a full tile
  std::int64_t tiles = 0;
  std::int64_t grain = 1;  // the minimum of tiles per thread

  std::vector<InputPlan> inputs;
  std::vector<OutputPlan> outputs;
  std::vector<Constant> constants;
  std::vector<std::int64_t> given;  // the inputs with Reading::Given
  std::vector<int> kept;            // the slots of reduced values, kept until the tile is done
  std::vector<int> buffer_of_slot;  // -1: the slot is the memory of an input or output
  std::vector<TileLoop> loops;
  std::vector<InPlace> in_place;  // see Kernel::in_place
};

}  // namespace ngd::kernels::fused
