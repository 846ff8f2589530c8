// SPDX-License-Identifier: Apache-2.0
// How one matrix multiplication is divided among threads and into blocks, and the scratch it needs.
//
// The blocks follow K. Goto and R. van de Geijn, "Anatomy of High-Performance Matrix Multiplication"
// (ACM TOMS 34, 2008), section 4. A block of B is packed once and stays in the second-level cache.
// Blocks of A are packed and multiplied with it, tile by tile.
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
// The columns are for one product; several products share them. Blocks are wide because a sink reads
// its other operands in rows that are far apart, and the TLB does not keep their pages for long.
// 1024 x 1024 of depth 128 with an update of the weights takes 2,950 us with these limits, and
// 3,450 us with 64 x 384 (Zen 4; matmul and update as two kernels: 3,450 us).
inline constexpr BlockLimits kStreamingLimits{32, 1056};
inline constexpr std::int64_t kMaxBlockDepth = 256;
inline constexpr std::int64_t kMaxKeptElements = 1 << 19;   // of A, packed for all depths
inline constexpr std::int64_t kMinWorkPerThread = 1 << 18;  // multiplications

// Divide a length into the fewest parts of at most `limit`, as evenly as possible. Return the length
// of the longest part.
inline std::int64_t even_part(std::int64_t length, std::int64_t limit) {
  const std::int64_t parts = std::max<std::int64_t>(1, divide_up(length, limit));
  return std::max<std::int64_t>(1, divide_up(length, parts));
}

inline std::int64_t num_parts_for(std::int64_t work, std::int64_t threads) {
  return std::clamp<std::int64_t>(work / kMinWorkPerThread, 1, threads);
}

struct Blocking {
  // The work of one thread.
  struct Part {
    Range products, rows, columns;
  };

  std::int64_t num_parts = 1;
  bool divides_batch = false;      // a thread computes whole products, not a part of each
  bool divides_columns = false;    // else rows; of each product, if the batch is not divided
  bool has_one_row_block = false;  // all rows of a part are one block of A
  bool keeps_a = false;            // the packed rows of A of all depths stay for the next columns
  std::int64_t rows = 1, columns = 1, depth = 1;  // of the packed blocks
  // Scratch of one part: of packed A; of B and of the sums, per product that streams; of all.
  std::int64_t a_elements = 0, b_elements = 0, c_elements = 0, part_elements = 0;

  // Blocks for PackedGemm. If A has no more rows than a block, each panel of B is used only once,
  // and one panel's memory is enough.
  template <class T>
  static Blocking packed(const MatmulShape& shape, const GemmTile<T>& tile, std::int64_t threads) {
    Blocking made = divided(shape, tile, threads, kPackedLimits);
    const std::int64_t kept_columns =
        made.has_one_row_block ? std::min(tile.columns, made.columns) : made.columns;
    made.b_elements = round_up(kept_columns * made.depth, 64);
    made.part_elements = made.a_elements + made.b_elements;
    return made;
  }

  // Blocks for StreamingGemm: B is packed for all depths, and the sums of a block are in scratch.
  template <class T>
  static Blocking streaming(const MatmulShape& shape, std::int64_t num_products,
                            const GemmTile<T>& tile, std::int64_t threads) {
    BlockLimits limits = kStreamingLimits;
    limits.columns /= num_products;
    Blocking made = divided(shape, tile, threads, limits);
    made.b_elements = round_up(made.columns * shape.k, 64);
    made.c_elements = round_up(made.rows * made.columns, 64);
    made.part_elements = made.a_elements + num_products * (made.b_elements + made.c_elements);
    return made;
  }

  std::int64_t scratch_elements() const { return num_parts * part_elements; }

  template <class T>
  Part part(std::int64_t index, const MatmulShape& shape, const GemmTile<T>& tile) const {
    const std::int64_t products = element_count(shape.batch);
    Part whole{{0, products}, {0, shape.m}, {0, shape.n}};
    if (divides_batch)
      whole.products = device::share(products, 1, index, num_parts);
    else if (divides_columns)
      whole.columns = device::share(shape.n, tile.lanes, index, num_parts);
    else
      whole.rows = device::share(shape.m, tile.rows, index, num_parts);
    return whole;
  }

 private:
  template <class T>
  static Blocking divided(const MatmulShape& shape, const GemmTile<T>& tile, std::int64_t threads,
                          BlockLimits limits) {
    const std::int64_t products = element_count(shape.batch);
    Blocking made;
    made.num_parts = num_parts_for(products * shape.m * shape.n * shape.k, threads);
    made.divides_batch = products >= made.num_parts;
    made.divides_columns = shape.n >= shape.m;
    const std::int64_t row_parts = made.divides_batch || made.divides_columns ? 1 : made.num_parts;
    const std::int64_t part_rows = round_up(divide_up(shape.m, row_parts), tile.rows);
    made.rows = std::clamp(part_rows, tile.rows, round_up(limits.rows, tile.rows));
    made.has_one_row_block = part_rows <= made.rows;
    made.keeps_a = made.has_one_row_block && made.rows * shape.k <= kMaxKeptElements;
    made.columns = std::min(round_up(even_part(shape.n, limits.columns), tile.columns),
                            round_up(shape.n, tile.lanes));
    made.depth = even_part(shape.k, kMaxBlockDepth);
    made.a_elements = round_up(made.rows * (made.keeps_a ? shape.k : made.depth), 64);
    return made;
  }
};

}  // namespace ngd::kernels::gemm
