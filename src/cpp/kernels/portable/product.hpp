// SPDX-License-Identifier: Apache-2.0
// The own matrix product, blocked for the caches as in K. Goto and R. van de Geijn, "Anatomy of
// High-Performance Matrix Multiplication" (ACM TOMS 34, 2008), section 4.
//
// A block of B (kDepth x kColumns) is packed once and stays in the second-level cache while blocks
// of A (up to kRows x kDepth) are packed and multiplied with it, tile by tile. Where A has no more
// rows than a block, a panel of B is used up at once, and A stays packed.
#pragma once

#include <algorithm>
#include <cstring>

#include "base/simd.hpp"
#include "device/threads.hpp"
#include "kernels/fused/tiles.hpp"
#include "kernels/portable/gemm.hpp"
#include "kernels/portable/matmul_shape.hpp"

namespace ngd::kernels::portable {

inline constexpr std::int64_t kRows = 128, kColumns = 480, kDepth = 256;
inline constexpr std::int64_t kKept = 1 << 19;       // elements of A that stay packed
inline constexpr std::int64_t kGrainWork = 1 << 18;  // multiplications that are worth a thread
inline constexpr std::int64_t kCastPiece = 4096;

inline const GemmTiles& tiles() { return NGD_SIMD_SELECT(gemm_tiles)(); }

template <class T>
const GemmTile<T>& tile_of() {
  if constexpr (std::is_same_v<T, float>)
    return tiles().f32;
  else if constexpr (std::is_same_v<T, double>)
    return tiles().f64;
  else if constexpr (std::is_same_v<T, std::uint32_t>)
    return tiles().u32;
  else
    return tiles().u64;
}

inline std::int64_t round_up(std::int64_t value, std::int64_t to) {
  return (value + to - 1) / to * to;
}

// How one product is cut, and the scratch that each of its threads needs.
struct Blocking {
  std::int64_t pieces = 1;  // threads at once
  bool by_batch = false;    // a thread takes whole products, not a part of each
  bool by_columns = false;  // that part: some columns, not some rows
  bool one_block = false;   // all rows of a piece are one block of A
  bool keeps_a = false;     // of which the panels of every depth are kept
  std::int64_t rows = 1, columns = 1, depth = 1;  // of the packed blocks
  std::int64_t a_elements = 0, b_elements = 0;    // of a piece's scratch

  template <class T>
  Blocking(const MatmulShape& shape, const GemmTile<T>& tile) {
    const std::int64_t products = element_count(shape.batch);
    const std::int64_t work = products * shape.m * shape.n * shape.k;
    pieces = std::clamp<std::int64_t>(work / kGrainWork, 1, device::thread_count());
    by_batch = products >= pieces;
    by_columns = shape.n >= shape.m;
    const std::int64_t parts = by_batch || by_columns ? 1 : pieces;
    const std::int64_t share = round_up((shape.m + parts - 1) / parts, tile.rows);
    rows = std::clamp(share, tile.rows, round_up(kRows, tile.rows));
    one_block = share <= rows;
    keeps_a = one_block && rows * shape.k <= kKept;
    columns = std::min(round_up(kColumns, tile.columns), round_up(shape.n, tile.lanes));
    depth = std::clamp<std::int64_t>(shape.k, 1, kDepth);
    a_elements = round_up(rows * (keeps_a ? shape.k : depth), 64);
    b_elements = round_up((one_block ? std::min(tile.columns, columns) : columns) * depth, 64);
  }
  std::int64_t elements() const { return pieces * (a_elements + b_elements); }
};

template <class T>
class Gemm {
 public:
  explicit Gemm(const MatmulShape& shape)
      : shape_(shape), tile_(tile_of<T>()), blocking_(shape, tile_) {}

  std::int64_t scratch_elements() const { return blocking_.elements(); }

  void run(const T* a, const T* b, const T* bias, T* out, T* scratch) const {
    const std::int64_t products = element_count(shape_.batch), pieces = blocking_.pieces;
    device::parallel_for(pieces, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t piece = begin; piece < end; ++piece) {
        T* own = scratch + piece * (blocking_.a_elements + blocking_.b_elements);
        const bool all = blocking_.by_batch, columns = blocking_.by_columns;
        const std::int64_t first = all ? products * piece / pieces : 0,
                           last = all ? products * (piece + 1) / pieces : products;
        const Range rows = all || columns ? Range{0, shape_.m} : part(shape_.m, tile_.rows, piece);
        const Range of_b =
            all || !columns ? Range{0, shape_.n} : part(shape_.n, tile_.lanes, piece);
        for (std::int64_t i = first; i < last; ++i) product(i, rows, of_b, a, b, bias, out, own);
      }
    });
  }

 private:
  struct Range {
    std::int64_t begin, end;
  };

  // A piece's share of so many rows or columns.
  Range part(std::int64_t count, std::int64_t unit, std::int64_t piece) const {
    const std::int64_t units = (count + unit - 1) / unit;
    return {units * piece / blocking_.pieces * unit,
            std::min(count, units * (piece + 1) / blocking_.pieces * unit)};
  }

  // Where the operand of product number i begins, among those of its batch axes.
  std::int64_t matrix_of(std::int64_t i, const Shape& batch) const {
    std::int64_t index = 0, stride = 1;
    for (std::size_t axis = batch.size(); axis-- > 0;) {
      if (batch[axis] != 1) index += i % shape_.batch[axis] * stride;
      stride *= batch[axis];
      i /= shape_.batch[axis];
    }
    return index;
  }

  // Those rows and columns of product number i.
  void product(std::int64_t i, Range rows, Range columns, const T* a, const T* b, const T* bias,
               T* out, T* scratch) const {
    const MatmulShape& s = shape_;
    const View<T> view_a{a + matrix_of(i, s.batch_a) * s.m * s.k, s.transpose_a ? 1 : s.k,
                         s.transpose_a ? s.m : 1};
    // Columns of B are lines.
    const View<T> view_b{b + matrix_of(i, s.batch_b) * s.k * s.n, s.transpose_b ? s.k : 1,
                         s.transpose_b ? 1 : s.n};
    T* c = out + i * s.m * s.n;
    for (std::int64_t j = columns.begin; j < columns.end; j += blocking_.columns)
      for (std::int64_t p = 0; p < std::max<std::int64_t>(s.k, 1); p += blocking_.depth)
        for (std::int64_t row = rows.begin; row < rows.end; row += blocking_.rows) {
          T* packed_a = scratch + (blocking_.keeps_a ? blocking_.rows * p : 0);
          const Block block{{row, std::min(row + blocking_.rows, rows.end)},
                            {j, std::min(j + blocking_.columns, columns.end)},
                            {p, std::min(p + blocking_.depth, s.k)},
                            row == rows.begin};
          if (!blocking_.keeps_a || j == columns.begin) pack_rows(view_a, block, packed_a);
          multiply(block, view_b, columns, packed_a, scratch + blocking_.a_elements, bias, c);
        }
  }

  struct Block {
    Range rows, columns, depth;
    bool first;  // of the blocks that use the same part of B: it packs that
  };

  void pack_rows(View<T> a, const Block& block, T* panels) const {
    const std::int64_t depth = block.depth.end - block.depth.begin;
    for (std::int64_t i = block.rows.begin; i < block.rows.end; i += tile_.rows) {
      const T* from = a.data + i * a.row + block.depth.begin * a.column;
      tile_.pack({from, a.row, a.column}, std::min(tile_.rows, block.rows.end - i), depth,
                 tile_.rows, panels + (i - block.rows.begin) * depth);
    }
  }

  // A panel of B is packed when it is first needed. While its tiles are computed, the memory of the
  // next one comes closer.
  void multiply(const Block& block, View<T> b, Range all, const T* packed_a, T* packed_b,
                const T* bias, T* c) const {
    const std::int64_t depth = block.depth.end - block.depth.begin;
    const bool last = block.depth.end >= shape_.k;
    TileWork<T> work{};
    work.depth = depth;
    work.c_stride = shape_.n;
    work.add = block.depth.begin > 0;
    work.relu = last && !shape_.post.empty();  // once or more: the same
    for (std::int64_t j = block.columns.begin; j < block.columns.end; j += tile_.columns) {
      T* panel = packed_b + (blocking_.one_block ? 0 : (j - block.columns.begin) * depth);
      work.columns = std::min(tile_.columns, block.columns.end - j);
      work.b = panel;
      work.bias = last && bias != nullptr ? bias + j : nullptr;
      const T* from = b.data + j * b.row + block.depth.begin * b.column;
      if (block.first)
        tile_.pack({from, b.row, b.column}, work.columns, depth,
                   round_up(work.columns, tile_.lanes), panel);
      const Ahead ahead = block.first ? behind(block, j, b, all) : Ahead{};
      for (std::int64_t i = block.rows.begin; i < block.rows.end; i += tile_.rows) {
        const std::int64_t row = i - block.rows.begin;
        work.rows = std::min(tile_.rows, block.rows.end - i);
        work.a = packed_a + row * depth;
        work.c = c + i * shape_.n + j;
        ahead.line(row / tile_.rows, panel, work);
        tile_.multiply(work);
      }
    }
  }

  // Rows of memory that are packed next.
  struct Ahead {
    const std::byte* data = nullptr;
    std::int64_t bytes = 0, stride = 0;

    // What a tile fetches of them: of each row one line; if there is none, what it has anyway.
    void line(std::int64_t number, const void* anyway, TileWork<T>& work) const {
      constexpr std::int64_t kLine = 64;
      const bool some = data != nullptr && (number - 1) * kLine < bytes - 1;
      const std::int64_t offset = std::min(number * kLine, bytes - 1);
      work.ahead = some ? data + offset : static_cast<const std::byte*>(anyway);
      work.ahead_stride = some ? stride : 0;
    }
  };

  // What is packed behind the columns from j of a block, if B lies in rows: there a panel's memory
  // is many short pieces far apart, which no prefetcher of a CPU foresees.
  Ahead behind(const Block& block, std::int64_t j, View<T> b, Range all) const {
    std::int64_t column = j + tile_.columns, row = block.depth.begin;
    if (column >= block.columns.end) {
      row = block.depth.end;
      column = row < shape_.k ? block.columns.begin : block.columns.end;
      row = row < shape_.k ? row : 0;
    }
    if (b.row != 1 || column >= all.end) return {};
    return {reinterpret_cast<const std::byte*>(b.data + row * b.column + column),
            std::min(tile_.columns, all.end - column) * static_cast<std::int64_t>(sizeof(T)),
            b.column * static_cast<std::int64_t>(sizeof(T))};
  }

  MatmulShape shape_;
  GemmTile<T> tile_;
  Blocking blocking_;
};

// A cast between the stored and the computed dtype, or null where they are one.
inline fused::TileFunction cast_in(DType dtype) {
  if (is_half(dtype)) return fused::widening(dtype);
  if (size_of(dtype) >= 4) return nullptr;
  return fused::tile_table().casts[static_cast<int>(dtype)][static_cast<int>(DType::U32)];
}
inline fused::TileFunction cast_out(DType dtype) {
  if (is_half(dtype)) return fused::narrowing(dtype);
  if (size_of(dtype) >= 4) return nullptr;
  return fused::tile_table().casts[static_cast<int>(DType::U32)][static_cast<int>(dtype)];
}

// Casts elements from one dtype to the other; `function` is of cast_in or cast_out.
inline void cast(fused::TileFunction function, const void* from, std::size_t from_item, void* to,
                 std::size_t to_item, std::int64_t count) {
  device::parallel_for(count, 8 * kCastPiece, [&](std::int64_t begin, std::int64_t end) {
    function(static_cast<const std::byte*>(from) + begin * static_cast<std::int64_t>(from_item),
             nullptr, nullptr,
             static_cast<std::byte*>(to) + begin * static_cast<std::int64_t>(to_item), end - begin);
  });
}

}  // namespace ngd::kernels::portable
