// SPDX-License-Identifier: Apache-2.0
// The blocking of a GEMM, C = A @ B: how the GEMM is divided among threads and into blocks, and the
// scratch memory that it needs.
//
// The blocking follows K. Goto and R. van de Geijn, "Anatomy of High-Performance Matrix
// Multiplication" (ACM TOMS 34, 2008), section 4. Its words in these files are:
//   part     the work of one thread: some products of the batch, or some rows or columns of each
//   block    some rows and columns of C and a range of the depth, computed at once
//   tile     some rows and columns of a block whose sums stay in registers (tile.hpp)
//   panel    the rows of A, or the columns of B, that one tile reads
//   packing  a copy of an operand to scratch memory, in panels and in the order in which tiles read
// A block of B is packed once, and stays in the second-level cache. Blocks of A are packed and
// multiplied with it, tile by tile.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/bits.hpp"
#include "device/team.hpp"
#include "kernels/gemm/tile.hpp"
#include "kernels/shapes/matmul_shape.hpp"

namespace ngd::kernels::gemm {

using device::Range;

// The largest block of C that is computed at once.
struct BlockLimits {
  std::int64_t rows, columns;
};
inline constexpr BlockLimits kPackedLimits{128, 480};
// The block limits of a StreamingGemm. If the GEMM has several products, the limit of columns is
// divided by their number. Blocks are wide and have few rows because of the sink, the object that
// gets the computed blocks. A sink reads its other operands in rows that are far apart. The TLB
// does not keep the pages of many such rows.
//
// Measured on Zen 4: a product of 1024 x 1024 with depth 128, with an update of the weights in the
// sink, takes 2,950 us with these limits. With blocks of at most 64 rows and 384 columns, it takes
// 3,450 us, as long as a matmul and an update in two separate kernels.
inline constexpr BlockLimits kStreamingLimits{32, 1056};
inline constexpr std::int64_t kMaxBlockDepth = 256;
// PackedGemm keeps packed rows of A for the next columns (Blocking::keeps_a) only if the rows have
// at most this many elements.
inline constexpr std::int64_t kMaxKeptElements = 1 << 19;
inline constexpr std::int64_t kMinWorkPerThread = 1 << 18;  // multiplications

// Divide a length into the fewest parts of at most `limit`, as evenly as possible. Return the
// length of the longest part.
inline std::int64_t even_part(std::int64_t length, std::int64_t limit) {
  const std::int64_t parts = std::max<std::int64_t>(1, divide_up(length, limit));
  return std::max<std::int64_t>(1, divide_up(length, parts));
}

// Return the number of threads that share `work` multiplications. Each thread has at least
// kMinWorkPerThread of them, except if one thread does all.
inline std::int64_t num_parts_for(std::int64_t work, std::int64_t threads) {
  return std::clamp<std::int64_t>(work / kMinWorkPerThread, 1, threads);
}

// The division of one GEMM into parts and blocks, and the size of its scratch memory.
struct Blocking {
  // The work of one thread: ranges of the batch's products, of their rows, and of their columns.
  struct Part {
    Range products, rows, columns;
  };

  std::int64_t num_parts = 1;
  // True if each thread computes whole products of the batch. False if each thread computes some
  // rows or some columns of every product.
  bool divides_batch = false;
  // True if the threads divide the columns of C, false if they divide its rows. Not used if
  // divides_batch is true.
  bool divides_columns = false;
  bool has_one_row_block = false;  // a thread's rows of a product are all in one block
  // True if PackedGemm keeps the packed rows of A, over the whole depth, while it computes the next
  // blocks of columns. False if it packs them again.
  bool keeps_a = false;
  std::int64_t rows = 1, columns = 1, depth = 1;  // of a block
  // The scratch memory for the work of one thread, in elements. `a_elements` is for packed A,
  // `b_elements` for packed B of one product, and `c_elements` for the sums of one block of one
  // product. PackedGemm has no such sums, so `c_elements` is 0. `part_elements` is the total.
  // StreamingGemm computes several products at once, and has memory for B and the sums of each.
  std::int64_t a_elements = 0, b_elements = 0, c_elements = 0, part_elements = 0;

  // Return the blocking of a PackedGemm, the GEMM that stores its result in memory. A panel of B
  // has the columns that one tile reads. If one block has all rows that a thread computes, no other
  // block of the thread reads the same panels. The scratch memory then holds only one packed panel.
  // Otherwise, it holds all panels of a block.
  template <class T>
  static Blocking packed(const MatmulShape& shape, const GemmTile<T>& tile, std::int64_t threads) {
    Blocking blocking = divide(shape, tile, threads, kPackedLimits);
    const std::int64_t packed_columns =
        blocking.has_one_row_block ? std::min(tile.columns, blocking.columns) : blocking.columns;
    blocking.b_elements = round_up(packed_columns * blocking.depth, 64);
    blocking.part_elements = blocking.a_elements + blocking.b_elements;
    return blocking;
  }

  // Return the blocking of a StreamingGemm, the GEMM that does not store its result. The scratch
  // memory holds packed B for the columns of a block and the whole depth, because all blocks with
  // these columns read the same B. The scratch memory also holds the sums of a block.
  template <class T>
  static Blocking streaming(const MatmulShape& shape, std::int64_t num_products,
                            const GemmTile<T>& tile, std::int64_t threads) {
    BlockLimits limits = kStreamingLimits;
    limits.columns /= num_products;
    Blocking blocking = divide(shape, tile, threads, limits);
    blocking.b_elements = round_up(blocking.columns * shape.k, 64);
    blocking.c_elements = round_up(blocking.rows * blocking.columns, 64);
    blocking.part_elements =
        blocking.a_elements + num_products * (blocking.b_elements + blocking.c_elements);
    return blocking;
  }

  // Return the number of elements in the scratch memory of all threads together.
  std::int64_t scratch_elements() const { return num_parts * part_elements; }

  // Return the work of thread number `index`, which is less than num_parts. It may be empty.
  template <class T>
  Part part(std::int64_t index, const MatmulShape& shape, const GemmTile<T>& tile) const {
    const std::int64_t products = element_count(shape.batch);
    Part part_range{{0, products}, {0, shape.m}, {0, shape.n}};
    if (divides_batch)
      part_range.products = device::share(products, 1, index, num_parts);
    else if (divides_columns)
      part_range.columns = device::share(shape.n, tile.lanes, index, num_parts);
    else
      part_range.rows = device::share(shape.m, tile.rows, index, num_parts);
    return part_range;
  }

 private:
  // Return the division of a GEMM into parts and blocks. The caller sets b_elements, c_elements and
  // part_elements of the result.
  template <class T>
  static Blocking divide(const MatmulShape& shape, const GemmTile<T>& tile, std::int64_t threads,
                         BlockLimits limits) {
    const std::int64_t products = element_count(shape.batch);
    Blocking blocking;
    blocking.num_parts = num_parts_for(products * shape.m * shape.n * shape.k, threads);
    blocking.divides_batch = products >= blocking.num_parts;
    blocking.divides_columns = shape.n >= shape.m;
    const std::int64_t row_parts =
        blocking.divides_batch || blocking.divides_columns ? 1 : blocking.num_parts;
    const std::int64_t part_rows = round_up(divide_up(shape.m, row_parts), tile.rows);
    blocking.rows = std::clamp(part_rows, tile.rows, round_up(limits.rows, tile.rows));
    blocking.has_one_row_block = part_rows <= blocking.rows;
    blocking.keeps_a = blocking.has_one_row_block && blocking.rows * shape.k <= kMaxKeptElements;
    blocking.columns = std::min(round_up(even_part(shape.n, limits.columns), tile.columns),
                                round_up(shape.n, tile.lanes));
    blocking.depth = even_part(shape.k, kMaxBlockDepth);
    blocking.a_elements =
        round_up(blocking.rows * (blocking.keeps_a ? shape.k : blocking.depth), 64);
    return blocking;
  }
};

}  // namespace ngd::kernels::gemm
