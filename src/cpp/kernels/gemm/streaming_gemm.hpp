// SPDX-License-Identifier: Apache-2.0
// ngd's GEMM for results that are not stored. Each finished block is passed to a sink, an object
// that uses the block while it is in the second-level cache. blocking.hpp defines part, block,
// tile, panel and packing.
#pragma once

#include <algorithm>
#include <cstdint>

#include "device/team.hpp"
#include "kernels/gemm/blocking.hpp"
#include "kernels/gemm/panels.hpp"
#include "kernels/gemm/tile_of.hpp"
#include "kernels/shapes/matmul_shape.hpp"

namespace ngd::kernels::gemm {

// Several matrix products of one shape, without batch axes. The sink, an object that uses the
// computed blocks, gets the same block of all products at once.
//
// A sink has two functions:
//   void prefetch_tile(Range rows, Range columns)
//   void write_block(Range rows, Range columns, const T* values, std::int64_t product_stride)
// The sums over the depth are computed in several ranges of the depth. In the last range,
// prefetch_tile is called before each tile is computed, so that the sink can prefetch the memory
// that it needs for this tile. write_block gets the computed block. The values of the first product
// are a dense row-major block. The block of each next product begins product_stride elements later.
template <class T>
class StreamingGemm {
 public:
  StreamingGemm(const MatmulShape& shape, std::int64_t num_products, const Machine& machine)
      : shape_(shape),
        num_products_(num_products),
        blocking_(
            Blocking::streaming(shape, num_products, tile_of<T>(machine.simd), machine.threads)),
        panels_(shape, tile_of<T>(machine.simd), true) {}

  // Return the number of elements in the scratch memory that run_into() needs.
  std::int64_t scratch_elements() const { return blocking_.scratch_elements(); }

  // Compute all products. operands: a and b of the first product, a and b of the second one, and so
  // on. Each thread calls make_sink() to create its own sink. It passes each computed block to
  // write_block() of this sink, which uses the block.
  template <class MakeSink>
  void run_into(const MakeSink& make_sink, const void* const* operands, T* scratch) const {
    device::for_range(blocking_.num_parts, 1, [&](std::int64_t begin, std::int64_t end) {
      auto sink = make_sink();
      for (std::int64_t index = begin; index < end; ++index) {
        const Blocking::Part part = blocking_.part(index, shape_, panels_.tile());
        stream_blocks(part.rows, part.columns, operands, scratch + index * blocking_.part_elements,
                      sink);
      }
    });
  }

 private:
  // Compute the blocks of C one after the other, each over the whole depth. The first block that
  // reads a range of columns of B packs it for the whole depth.
  template <class Sink>
  void stream_blocks(Range rows, Range columns, const void* const* operands, T* scratch,
                     Sink& sink) const {
    T* packed_b = scratch + blocking_.a_elements;
    T* sums = packed_b + num_products_ * blocking_.b_elements;
    for (std::int64_t j = columns.begin; j < columns.end; j += blocking_.columns)
      for (std::int64_t row = rows.begin; row < rows.end; row += blocking_.rows) {
        Block<T> block{{row, std::min(row + blocking_.rows, rows.end)},
                       {j, std::min(j + blocking_.columns, columns.end)},
                       {0, 0},
                       row == rows.begin,
                       columns.end};
        block.c_stride = block.columns.size();
        for (std::int64_t i = 0; i < num_products_; ++i) {
          block.c = sums + i * blocking_.c_elements;
          multiply_block(block, static_cast<const T*>(operands[2 * i]),
                         static_cast<const T*>(operands[2 * i + 1]), scratch,
                         packed_b + i * blocking_.b_elements, sink);
        }
        sink.write_block(block.rows, block.columns, sums, blocking_.c_elements);
      }
  }

  // Compute a block of one product, over the whole depth. `a` and `b` are the operands. If
  // block.packs_b is true, `packed_b` gets the packed columns of B, which later blocks read.
  template <class Sink>
  void multiply_block(Block<T> block, const T* a, const T* b, T* packed_a, T* packed_b,
                      Sink& sink) const {
    block.b = view_of_b(shape_, b);
    for (std::int64_t p = 0; p < shape_.k; p += blocking_.depth) {
      block.depth = {p, std::min(p + blocking_.depth, shape_.k)};
      block.a = panels_.rows_of(view_of_a(shape_, a), block, packed_a, false);
      block.packed_b = packed_b + blocking_.columns * p;
      panels_.multiply(block, sink);
    }
  }

  MatmulShape shape_;
  std::int64_t num_products_;
  Blocking blocking_;
  Panels<T> panels_;
};

}  // namespace ngd::kernels::gemm
