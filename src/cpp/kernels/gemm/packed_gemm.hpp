// SPDX-License-Identifier: Apache-2.0
// ngd's GEMM that stores its result in memory: the matrix multiplications of a batch, with a bias
// and relu. blocking.hpp defines part, block, tile, panel and packing.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/bits.hpp"
#include "device/team.hpp"
#include "kernels/gemm/blocking.hpp"
#include "kernels/gemm/panels.hpp"
#include "kernels/gemm/tile_of.hpp"
#include "kernels/shapes/matmul_shape.hpp"

namespace ngd::kernels::gemm {

template <class T>
class PackedGemm {
 public:
  PackedGemm(const MatmulShape& shape, const Machine& machine)
      : shape_(shape),
        blocking_(Blocking::packed(shape, tile_of<T>(machine.simd), machine.threads)),
        panels_(shape, tile_of<T>(machine.simd), !blocking_.has_one_row_block) {}

  // Return the number of elements in the scratch memory that run() needs.
  std::int64_t scratch_elements() const { return blocking_.scratch_elements(); }

  // Return a number of scratch elements that is enough for a product of the shape `largest`, and
  // for products with the same n and a smaller m or k.
  static std::int64_t max_scratch_elements(const MatmulShape& largest, const Machine& machine) {
    const GemmTile<T>& tile = tile_of<T>(machine.simd);
    const std::int64_t parts = num_parts_for(largest.m * largest.n * largest.k, machine.threads);
    const std::int64_t rows =
        round_up(std::min(std::max<std::int64_t>(largest.m, 1), kPackedLimits.rows), tile.rows);
    const std::int64_t depth = std::clamp<std::int64_t>(largest.k, 1, kMaxBlockDepth);
    const std::int64_t columns =
        std::min(round_up(even_part(largest.n, kPackedLimits.columns), tile.columns),
                 round_up(largest.n, tile.lanes));
    const std::int64_t a_elements =
        std::max(rows * depth, std::min(rows * largest.k, kMaxKeptElements));
    return parts * (round_up(a_elements, 64) + round_up(columns * depth, 64));
  }

  // Compute all products of the batch. `bias` has one element per column of a product, or is null.
  void run(const T* a, const T* b, const T* bias, T* out, T* scratch) const {
    device::for_pieces(blocking_.num_parts, [&](std::int64_t index) {
      const Blocking::Part part = blocking_.part(index, shape_, panels_.tile());
      for (std::int64_t i = part.products.begin; i < part.products.end; ++i)
        multiply_product(i, part.rows, part.columns, a, b, bias, out,
                         scratch + index * blocking_.part_elements);
    });
  }

 private:
  // Return the index of the matrix that product i reads from an operand. `batch` is the lengths of
  // the operand's batch axes; the operand broadcasts along axes of length 1.
  std::int64_t matrix_of(std::int64_t i, const Shape& batch) const {
    std::int64_t index = 0, stride = 1;
    for (std::size_t axis = batch.size(); axis-- > 0;) {
      if (batch[axis] != 1) index += i % shape_.batch[axis] * stride;
      stride *= batch[axis];
      i /= shape_.batch[axis];
    }
    return index;
  }

  // Compute some rows and columns of product number i of the batch, block by block.
  void multiply_product(std::int64_t i, Range rows, Range columns, const T* a, const T* b,
                        const T* bias, T* out, T* scratch) const {
    const MatmulShape& s = shape_;
    const View<T> view_a = view_of_a(s, a + matrix_of(i, s.batch_a) * s.m * s.k),
                  view_b = view_of_b(s, b + matrix_of(i, s.batch_b) * s.k * s.n);
    T* c = out + i * s.m * s.n;
    const NoSink sink;
    for (std::int64_t j = columns.begin; j < columns.end; j += blocking_.columns)
      for (std::int64_t p = 0; p < std::max<std::int64_t>(s.k, 1); p += blocking_.depth)
        for (std::int64_t row = rows.begin; row < rows.end; row += blocking_.rows) {
          Block<T> block{{row, std::min(row + blocking_.rows, rows.end)},
                         {j, std::min(j + blocking_.columns, columns.end)},
                         {p, std::min(p + blocking_.depth, s.k)},
                         row == rows.begin,
                         columns.end};
          T* packed_a = scratch + (blocking_.keeps_a ? blocking_.rows * p : 0);
          const bool is_packed = blocking_.keeps_a && j > columns.begin;
          block.a = panels_.rows_of(view_a, block, packed_a, is_packed);
          block.b = view_b;
          block.packed_b = scratch + blocking_.a_elements;
          block.bias = bias;
          block.c = c + row * s.n + j;
          block.c_stride = s.n;
          panels_.multiply(block, sink);
        }
  }

  MatmulShape shape_;
  Blocking blocking_;
  Panels<T> panels_;
};

}  // namespace ngd::kernels::gemm
