// SPDX-License-Identifier: Apache-2.0
// How an elementwise program is carried out: geometry, where each operand lies, and the steps.
//
// Axes over which every input is either dense or constant are merged. What is left is rows of an
// inner axis. A tile is a piece of one row where rows are long, and several whole rows where they
// are short. A slot is a place where a tile of values lies: the input's or output's own memory, or
// a buffer of kTileBytes that stays in the first-level cache. Steps are tile loops over slots.
//
// Where some instructions are reduced (elementwise_reduce.cpp), their tiles are kept until all
// steps are done; rows are what lies along the last axes that are all reduced or all kept; and a
// tile is cut as the reduction adds: no blocks of rows are mixed, and a piece of a row is a block.
//
// Where inputs are products (elementwise_product.cpp), which are in no memory, tiles are any
// elements of a row that the products hand over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/fused/elementwise_program.hpp"
#include "kernels/kernel.hpp"
#include "kernels/reduce/geometry.hpp"

namespace ngd::kernels::fused {

using tiles::TileFunction;

inline constexpr std::int64_t kTileBytes = 4096;
inline constexpr int kMaxBuffers = 64, kMaxSlots = 256;

struct Step {
  TileFunction function;
  int a, b, c, out;  // slots; unused ones are `out`
};

// How an input comes to its slot.
enum class Reading : std::uint8_t {
  InPlace,    // dense over the output: its own memory, offset with the output
  InRow,      // the inner axis is dense and tiles are within rows: its own memory
  Once,       // the same values for every tile: gathered when a thread begins
  PerRow,     // one value a row and tiles are within rows: filled when the row changes
  EveryTile,  // gathered for every tile
  Given,      // dense over the output: handed to the walk a tile at a time
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
  std::uint64_t bits;  // its first `item` bytes are the value
};

struct Plan {
  explicit Plan(const KernelQuery& query);  // throws Refusal

  std::vector<std::int64_t> shape;  // merged axes; the last is the inner one
  std::int64_t rows = 1, inner = 1;
  std::int64_t rows_per_tile = 1;  // > 1: tiles of whole rows
  std::int64_t tiles_per_row = 1;  // > 1: tiles within rows
  std::int64_t tile_length = 0;    // elements of a full tile
  std::int64_t tiles = 0;
  std::int64_t grain = 1;  // tiles that are worth a thread

  std::vector<InputPlan> inputs;
  std::vector<OutputPlan> outputs;
  std::vector<Constant> constants;
  std::vector<std::int64_t> given;  // the inputs that are handed to the walk
  std::vector<int> kept;            // the slots of reduced instructions
  std::vector<int> buffer_of_slot;  // or -1 where the slot is memory of an input or output
  std::vector<Step> steps;
  std::vector<InPlace> in_place;  // as Verdict.in_place

 private:
  class Builder;
  void merge_axes(const KernelQuery& query, const Shape& whole);
  void choose_tiles(std::int64_t element_bytes);
  void choose_reduced_tiles(std::int64_t element_bytes, const reduce::Geometry& geometry);
  void choose_readings(const KernelQuery& query);
  bool is_given(std::size_t input) const;
  void choose_in_place(const std::vector<Instruction>& program,
                       const std::vector<std::int64_t>& results,
                       const std::vector<std::int64_t>& times);
};

}  // namespace ngd::kernels::fused
