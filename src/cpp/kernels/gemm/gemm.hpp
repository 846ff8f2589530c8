// SPDX-License-Identifier: Apache-2.0
// The own matrix product, blocked for the caches as in K. Goto and R. van de Geijn, "Anatomy of
// High-Performance Matrix Multiplication" (ACM TOMS 34, 2008), section 4.
//
// A block of B (kDepth x kColumns) is packed once and stays in the second-level cache while blocks
// of A (up to kRows x kDepth) are packed and multiplied with it, tile by tile. Where A has no more
// rows than a block, a panel of B is used up at once, and A stays packed.
#pragma once

#include <algorithm>
#include <utility>

#include "base/bits.hpp"
#include "base/simd.hpp"
#include "device/threads.hpp"
#include "kernels/gemm/tile.hpp"
#include "kernels/shapes/matmul_shape.hpp"
#include "kernels/tiles/tiles.hpp"

namespace ngd::kernels::gemm {

inline constexpr std::int64_t kRows = 128, kColumns = 480, kDepth = 256;
// Of blocks that are handed on: wide, since what is computed with them lies in rows far apart, whose
// pages no TLB keeps for long. 1024 x 1024 of depth 128 with an update of the weights takes 2,950 us
// so, and 3,450 us in blocks of 64 x 384 (Zen 4; the two apart: 3,450 us).
inline constexpr std::int64_t kHandedRows = 32, kHandedColumns = 1056;
inline constexpr std::int64_t kKept = 1 << 19;       // elements of A that stay packed
inline constexpr std::int64_t kPieceWork = 1 << 18;  // multiplications that are worth a thread
inline constexpr std::int64_t kCastPiece = 4096;

inline const GemmTiles& simd_tiles() { return NGD_SIMD_SELECT(gemm_tiles)(); }

template <class T>
const GemmTile<T>& tile_of() {
  if constexpr (std::is_same_v<T, float>)
    return simd_tiles().f32;
  else if constexpr (std::is_same_v<T, double>)
    return simd_tiles().f64;
  else if constexpr (std::is_same_v<T, std::uint32_t>)
    return simd_tiles().u32;
  else
    return simd_tiles().u64;
}

// The longest of the nearly equal parts into which a length is cut so that none is longer than `most`.
inline std::int64_t even(std::int64_t length, std::int64_t most) {
  const std::int64_t parts = std::max<std::int64_t>(1, (length + most - 1) / most);
  return std::max<std::int64_t>(1, (length + parts - 1) / parts);
}

// How one product is cut, and the scratch that each of its threads needs.
struct Blocking {
  std::int64_t pieces = 1;  // threads at once
  bool by_batch = false;    // a thread takes whole products, not a part of each
  bool by_columns = false;  // that part: some columns, not some rows
  bool one_block = false;   // all rows of a piece are one block of A
  bool keeps_a = false;     // of which the panels of every depth are kept
  std::int64_t rows = 1, columns = 1, depth = 1;  // of the packed blocks
  // Of a piece's scratch: of all, and of each product; c: the sums of a block that is handed on.
  std::int64_t of_piece = 0, a_elements = 0, b_elements = 0, c_elements = 0;

  template <class T>
  Blocking(const MatmulShape& shape, const GemmTile<T>& tile, std::int64_t handed,
           std::int64_t threads) {
    const std::int64_t products = element_count(shape.batch);
    const std::int64_t work = products * shape.m * shape.n * shape.k;
    pieces = std::clamp<std::int64_t>(work / kPieceWork, 1, threads);
    by_batch = products >= pieces;
    by_columns = shape.n >= shape.m;
    const std::int64_t parts = by_batch || by_columns ? 1 : pieces;
    const std::int64_t share = round_up((shape.m + parts - 1) / parts, tile.rows);
    const std::int64_t most = handed > 0 ? kHandedRows : kRows;
    rows = std::clamp(share, tile.rows, round_up(most, tile.rows));
    one_block = share <= rows;
    keeps_a = one_block && rows * shape.k <= kKept;
    columns = std::min(
        round_up(even(shape.n, handed > 0 ? kHandedColumns / handed : kColumns), tile.columns),
        round_up(shape.n, tile.lanes));
    depth = even(shape.k, kDepth);
    a_elements = round_up(rows * (keeps_a ? shape.k : depth), 64);
    const bool panels = one_block && handed == 0;
    b_elements = round_up(
        panels ? std::min(tile.columns, columns) * depth : columns * (handed > 0 ? shape.k : depth),
        64);
    if (handed > 0) c_elements = round_up(rows * columns, 64);
    of_piece = a_elements + std::max<std::int64_t>(1, handed) * (b_elements + c_elements);
  }
  std::int64_t elements() const { return pieces * of_piece; }
};

// Elements of scratch that suffice for one product of this shape, and for each with a smaller m or k.
template <class T>
std::int64_t scratch_elements_up_to(const MatmulShape& largest, std::int64_t threads) {
  const GemmTile<T>& tile = tile_of<T>();
  const std::int64_t work = largest.m * largest.n * largest.k;
  const std::int64_t pieces = std::clamp<std::int64_t>(work / kPieceWork, 1, threads);
  const std::int64_t rows =
      round_up(std::min(std::max<std::int64_t>(largest.m, 1), kRows), tile.rows);
  const std::int64_t depth = std::clamp<std::int64_t>(largest.k, 1, kDepth);
  const std::int64_t columns =
      std::min(round_up(even(largest.n, kColumns), tile.columns), round_up(largest.n, tile.lanes));
  const std::int64_t of_a = std::max(rows * depth, std::min(rows * largest.k, kKept));
  return pieces * (round_up(of_a, 64) + round_up(columns * depth, 64));
}

template <class T>
class Gemm {
 public:
  // handed: so many products for run_and_hand_on, or 0.
  explicit Gemm(const MatmulShape& shape, std::int64_t handed = 0,
                std::int64_t threads = device::thread_count())
      : shape_(shape),
        tile_(tile_of<T>()),
        handed_(handed),
        blocking_(shape, tile_, handed, threads) {}

  std::int64_t scratch_elements() const { return blocking_.elements(); }

  struct Range {
    std::int64_t begin, end;
  };

  void run(const T* a, const T* b, const T* bias, T* out, T* scratch) const {
    const std::int64_t products = element_count(shape_.batch), pieces = blocking_.pieces;
    device::parallel_for(pieces, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t piece = begin; piece < end; ++piece) {
        const bool all = blocking_.by_batch;
        const std::int64_t first = all ? products * piece / pieces : 0,
                           last = all ? products * (piece + 1) / pieces : products;
        const auto [rows, columns] = share_of(piece);
        for (std::int64_t i = first; i < last; ++i)
          product(i, rows, columns, a, b, bias, out, scratch_of(scratch, piece));
      }
    });
  }

  // Products of one shape, no batch, which are stored nowhere; a and b lie in turn in `factors`. Each
  // thread makes a taker and hands it finished blocks of all of them, by taker.take(rows, columns,
  // values, apart): row-major, as wide as the block, one so many elements behind the other. Before a
  // tile is computed the taker hears of it by fetch(rows, columns).
  template <class MakeTaker>
  void run_and_hand_on(const void* const* factors, T* scratch, const MakeTaker& make) const {
    device::parallel_for(blocking_.pieces, 1, [&](std::int64_t begin, std::int64_t end) {
      auto taker = make();
      for (std::int64_t piece = begin; piece < end; ++piece) {
        const auto [rows, columns] = share_of(piece);
        blocks(rows, columns, factors, scratch_of(scratch, piece), taker);
      }
    });
  }

 private:
  T* scratch_of(T* scratch, std::int64_t piece) const {
    return scratch + piece * blocking_.of_piece;
  }

  // The rows and columns of a piece.
  std::pair<Range, Range> share_of(std::int64_t piece) const {
    const bool all = blocking_.by_batch, columns = blocking_.by_columns;
    return {all || columns ? Range{0, shape_.m} : part(shape_.m, tile_.rows, piece),
            all || !columns ? Range{0, shape_.n} : part(shape_.n, tile_.lanes, piece)};
  }

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
    const View<T> view_a = view_of_a(a + matrix_of(i, s.batch_a) * s.m * s.k),
                  view_b = view_of_b(b + matrix_of(i, s.batch_b) * s.k * s.n);
    T* c = out + i * s.m * s.n;
    for (std::int64_t j = columns.begin; j < columns.end; j += blocking_.columns)
      for (std::int64_t p = 0; p < std::max<std::int64_t>(s.k, 1); p += blocking_.depth)
        for (std::int64_t row = rows.begin; row < rows.end; row += blocking_.rows) {
          T* packed_a = scratch + (blocking_.keeps_a ? blocking_.rows * p : 0);
          const Block block{{row, std::min(row + blocking_.rows, rows.end)},
                            {j, std::min(j + blocking_.columns, columns.end)},
                            {p, std::min(p + blocking_.depth, s.k)},
                            row == rows.begin};
          const bool packed = blocking_.keeps_a && j > columns.begin;
          multiply(block, view_b, columns, rows_of(view_a, block, packed_a, packed),
                   scratch + blocking_.a_elements, bias, {c + row * s.n + j, s.n}, nobody);
        }
  }

  // A block of C after the other, all its depth at once. All of B's columns that it needs are packed
  // with the first of these.
  template <class Taker>
  void blocks(Range rows, Range columns, const void* const* factors, T* scratch,
              Taker& taker) const {
    T* packed_b = scratch + blocking_.a_elements;
    T* sums = packed_b + handed_ * blocking_.b_elements;
    for (std::int64_t j = columns.begin; j < columns.end; j += blocking_.columns)
      for (std::int64_t row = rows.begin; row < rows.end; row += blocking_.rows) {
        Block block{{row, std::min(row + blocking_.rows, rows.end)},
                    {j, std::min(j + blocking_.columns, columns.end)},
                    {0, 0},
                    row == rows.begin};
        for (std::int64_t i = 0; i < handed_; ++i) {
          const View<T> view_a = view_of_a(static_cast<const T*>(factors[2 * i])),
                        view_b = view_of_b(static_cast<const T*>(factors[2 * i + 1]));
          for (std::int64_t p = 0; p < shape_.k; p += blocking_.depth) {
            block.depth = {p, std::min(p + blocking_.depth, shape_.k)};
            multiply(block, view_b, columns, rows_of(view_a, block, scratch, false),
                     packed_b + i * blocking_.b_elements + blocking_.columns * p, nullptr,
                     {sums + i * blocking_.c_elements, block.columns.end - j}, taker);
          }
        }
        taker.take(block.rows, block.columns, sums, blocking_.c_elements);
      }
  }

  // Where a block is stored.
  struct Stored {
    T* data;
    std::int64_t stride;
  };
  // For who wants nothing handed on.
  static constexpr struct Nobody {
    void fetch(Range, Range) const {}
  } nobody{};

  View<T> view_of_a(const T* a) const {
    return {a, shape_.transpose_a ? 1 : shape_.k, shape_.transpose_a ? shape_.m : 1};
  }
  // Columns of B are lines.
  View<T> view_of_b(const T* b) const {
    return {b, shape_.transpose_b ? shape_.k : 1, shape_.transpose_b ? 1 : shape_.n};
  }

  struct Block {
    Range rows, columns, depth;
    bool first;  // of the blocks that use the same part of B: it packs that
  };

  // Rows of A as tiles read them; see TileWork.
  struct Rows {
    const T* data;
    std::int64_t panel, step;
  };

  // Where they lie, or in panels, which are packed here unless they are there.
  Rows rows_of(View<T> a, const Block& block, T* panels, bool packed) const {
    const T* from = a.data + block.rows.begin * a.row + block.depth.begin * a.column;
    const std::int64_t rows = block.rows.end - block.rows.begin,
                       depth = block.depth.end - block.depth.begin;
    if (needs_no_packing_of_rows(a, rows)) return {from, tile_.rows, a.column};
    if (!packed) tile_.pack({from, a.row, a.column}, rows, depth, tile_.rows, panels);
    return {panels, tile_.rows * depth, tile_.rows};
  }

  // A panel of B is packed when it is first needed. While its tiles are computed, the memory of the
  // next one comes closer.
  template <class Taker>
  void multiply(const Block& block, View<T> b, Range all, const Rows& a, T* packed_b, const T* bias,
                Stored c, Taker& taker) const {
    const std::int64_t depth = block.depth.end - block.depth.begin;
    const bool last = block.depth.end >= shape_.k;
    TileWork<T> work{};
    work.depth = depth;
    work.a_panel = a.panel;
    work.a_step = a.step;
    work.c_stride = c.stride;
    work.add = block.depth.begin > 0;
    work.relu = last && !shape_.post.empty();  // once or more: the same
    for (std::int64_t j = block.columns.begin; j < block.columns.end; j += work.columns) {
      const bool used_up = blocking_.one_block && handed_ == 0;
      T* panel = packed_b + (used_up ? 0 : (j - block.columns.begin) * depth);
      work.columns = panel_of(block.columns.end - j);
      const T* from = b.data + j * b.row + block.depth.begin * b.column;
      const bool direct = needs_no_packing(b, work.columns);
      work.b = direct ? from : panel;
      work.b_step = direct ? b.column : round_up(work.columns, tile_.lanes);
      work.bias = last && bias != nullptr ? bias + j : nullptr;
      if (block.first && !direct)
        tile_.pack({from, b.row, b.column}, work.columns, depth,
                   round_up(work.columns, tile_.lanes), panel);
      const Ahead ahead = block.first ? behind(block, j + work.columns, b, all) : Ahead{};
      const bool turned = is_turned(work.columns);
      const std::int64_t step = turned ? tile_.turned_rows : tile_.rows;
      for (std::int64_t i = block.rows.begin; i < block.rows.end; i += step) {
        const std::int64_t row = i - block.rows.begin;
        work.rows = std::min(step, block.rows.end - i);
        work.a = a.data + row / tile_.rows * a.panel;
        work.c = c.data + row * c.stride + j - block.columns.begin;
        if (last) taker.fetch({i, i + work.rows}, {j, j + work.columns});
        ahead.line(row / step, panel, work);
        turned ? tile_.multiply_turned(work) : tile_.multiply(work);
      }
    }
  }

  // Whether so many columns of B are used where they lie: whole vectors of rows that follow closely.
  // To pack 784 x 96 takes 6 us of 200 (Zen 4).
  bool needs_no_packing(View<T> b, std::int64_t columns) const {
    constexpr std::int64_t kMostBytes = 1024;
    return b.row == 1 && columns % tile_.lanes == 0 &&
           b.column * static_cast<std::int64_t>(sizeof(T)) < kMostBytes;
  }

  // The same for rows of A, of which tiles read whole panels: they are used by few tiles, and what is
  // read of them at once does not meet in the same sets of the first-level cache, as it does at
  // multiples of 256 bytes. To pack 784 x 128 takes 12 us of a step of 440 (784-100-10, Zen 4).
  bool needs_no_packing_of_rows(View<T> a, std::int64_t rows) const {
    constexpr std::int64_t kMostBytes = 4096, kUneven = 256, kMostTiles = 3;
    const std::int64_t bytes = a.column * static_cast<std::int64_t>(sizeof(T));
    return a.row == 1 && rows % tile_.rows == 0 && bytes < kMostBytes && bytes % kUneven != 0 &&
           shape_.n <= kMostTiles * tile_.columns;
  }

  // Whether so few columns are multiplied as such.
  bool is_turned(std::int64_t columns) const { return columns <= tile_.turned_columns; }

  // How many of the columns that are left one panel takes: whole vectors, where few are left over.
  std::int64_t panel_of(std::int64_t left) const {
    const std::int64_t over = left % tile_.lanes;
    if (left - over == tile_.columns + tile_.lanes)
      return tile_.columns - tile_.lanes;  // not 3 + 1
    if (left >= tile_.columns) return tile_.columns;
    return left > over && over > 0 && is_turned(over) ? left - over : left;
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

  // What is packed from that column of a block on, or behind the block, if B lies in rows: there a
  // panel's memory is many short pieces far apart, which no prefetcher of a CPU foresees.
  Ahead behind(const Block& block, std::int64_t column, View<T> b, Range all) const {
    std::int64_t row = block.depth.begin;
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
  std::int64_t handed_;
  Blocking blocking_;
};

// A cast between the stored and the computed dtype, or null where they are one.
inline tiles::TileFunction cast_in(DType dtype) {
  if (is_half(dtype)) return tiles::widening(dtype);
  if (size_of(dtype) >= 4) return nullptr;
  return tiles::tile_table().casts[static_cast<int>(dtype)][static_cast<int>(DType::U32)];
}
inline tiles::TileFunction cast_out(DType dtype) {
  if (is_half(dtype)) return tiles::narrowing(dtype);
  if (size_of(dtype) >= 4) return nullptr;
  return tiles::tile_table().casts[static_cast<int>(DType::U32)][static_cast<int>(dtype)];
}

// Casts elements from one dtype to the other; `function` is of cast_in or cast_out.
inline void cast(tiles::TileFunction function, const void* from, std::size_t from_item, void* to,
                 std::size_t to_item, std::int64_t count) {
  device::parallel_for(count, 8 * kCastPiece, [&](std::int64_t begin, std::int64_t end) {
    function(static_cast<const std::byte*>(from) + begin * static_cast<std::int64_t>(from_item),
             nullptr, nullptr,
             static_cast<std::byte*>(to) + begin * static_cast<std::int64_t>(to_item), end - begin);
  });
}

}  // namespace ngd::kernels::gemm
