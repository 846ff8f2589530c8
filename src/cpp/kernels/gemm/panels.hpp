// SPDX-License-Identifier: Apache-2.0
// The loop over the panels and tiles of one block of C. PackedGemm and StreamingGemm share it.
//
// A panel of B has the columns that one tile reads. It is packed just before its tiles are
// computed, and these tiles prefetch the memory of the next panel.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/bits.hpp"
#include "kernels/gemm/blocking.hpp"
#include "kernels/gemm/tile.hpp"
#include "kernels/shapes/matmul_shape.hpp"

namespace ngd::kernels::gemm {

// Return A as a view: the rows of the view are the rows of A, even if A is stored transposed.
template <class T>
View<T> view_of_a(const MatmulShape& shape, const T* a) {
  return {a, shape.transpose_a ? 1 : shape.k, shape.transpose_a ? shape.m : 1};
}
// Return B as a view with exchanged axes: the rows of the view are the columns of B.
template <class T>
View<T> view_of_b(const MatmulShape& shape, const T* b) {
  return {b, shape.transpose_b ? shape.k : 1, shape.transpose_b ? 1 : shape.n};
}

// Rows of A, packed or in place. `data` is the first element. `panel` is the number of elements
// from one panel to the next. `step` is the number of elements from one step of the depth to the
// next. The three members become `a`, `a_panel` and `a_step` of a TileWork.
template <class T>
struct TileRows {
  const T* data;
  std::int64_t panel, step;
};

// A block of C, and its operands.
template <class T>
struct Block {
  Range rows, columns, depth;
  bool packs_b;  // this is the first block that reads these columns of B, so it packs them
  std::int64_t columns_end;  // the end of the thread's columns: columns after it are not prefetched
  TileRows<T> a{};
  View<T> b{};
  T* packed_b = nullptr;
  const T* bias = nullptr;
  T* c = nullptr;  // the first element of the block
  std::int64_t c_stride = 0;
};

// A sink whose prefetch_tile does nothing. A sink is the object that uses the computed blocks. A
// GEMM adds up the depth in ranges, one after the other. Before each tile of the last range, it
// calls prefetch_tile, so that a sink can prefetch the memory that it needs for the complete block.
struct NoSink {
  void prefetch_tile(Range, Range) const {}
};

// Packs the panels of one GEMM, and multiplies them.
template <class T>
class Panels {
 public:
  // keeps_b: true if later blocks read the packed panels of B again. Each packed panel then has its
  // own memory.
  Panels(const MatmulShape& shape, const GemmTile<T>& tile, bool keeps_b)
      : tile_(tile),
        num_columns_(shape.n),
        depth_(shape.k),
        // `post` lists functions for the result. PackedGemm supports only relu, and two relus in a
        // list have the same effect as one.
        has_relu_(!shape.post.empty()),
        keeps_b_(keeps_b) {}

  const GemmTile<T>& tile() const { return tile_; }

  // Return the rows of A for a block, in the form that tiles read. If tiles cannot read them in
  // place, the rows are packed into `panels`. `is_packed` is true if an earlier block has packed
  // them there already.
  TileRows<T> rows_of(View<T> a, const Block<T>& block, T* panels, bool is_packed) const {
    const T* from = a.data + block.rows.begin * a.row + block.depth.begin * a.column;
    const std::int64_t rows = block.rows.size(), depth = block.depth.size();
    if (reads_rows_in_place(a, rows)) return {from, tile_.rows, a.column};
    if (!is_packed) tile_.pack({from, a.row, a.column}, rows, depth, tile_.rows, panels);
    return {panels, tile_.rows * depth, tile_.rows};
  }

  // Compute a block of C, one panel of B after the other, and tile by tile in each panel.
  template <class Sink>
  void multiply(const Block<T>& block, Sink& sink) const {
    const bool is_last = block.depth.end >= depth_;
    TileWork<T> work{};
    work.depth = block.depth.size();
    work.a_panel = block.a.panel;
    work.a_step = block.a.step;
    work.c_stride = block.c_stride;
    work.add = block.depth.begin > 0;
    work.relu = is_last && has_relu_;
    for (std::int64_t j = block.columns.begin; j < block.columns.end; j += work.columns) {
      T* panel = block.packed_b + (keeps_b_ ? (j - block.columns.begin) * work.depth : 0);
      work.columns = panel_width(block.columns.end - j);
      read_panel(block, j, panel, work);
      work.bias = is_last && block.bias != nullptr ? block.bias + j : nullptr;
      const Prefetch next = block.packs_b ? next_panel(block, j + work.columns) : Prefetch{};
      const bool is_narrow_panel = is_narrow(work.columns);
      const std::int64_t step = is_narrow_panel ? tile_.narrow_rows : tile_.rows;
      for (std::int64_t i = block.rows.begin; i < block.rows.end; i += step) {
        const std::int64_t row = i - block.rows.begin;
        work.rows = std::min(step, block.rows.end - i);
        work.a = block.a.data + row / tile_.rows * block.a.panel;
        work.c = block.c + row * block.c_stride + j - block.columns.begin;
        if (is_last) sink.prefetch_tile({i, i + work.rows}, {j, j + work.columns});
        next.add_to(work, row / step, panel);
        is_narrow_panel ? tile_.multiply_narrow(work) : tile_.multiply(work);
      }
    }
  }

 private:
  // The memory from which the next panel of B is packed: pieces of rows, far apart in memory. A
  // piece has `row_bytes` bytes, and begins `stride` bytes after the previous one. If `data` is
  // null, there is nothing to prefetch.
  struct Prefetch {
    const std::byte* data = nullptr;
    std::int64_t row_bytes = 0, stride = 0;

    // Let the tile of `work` prefetch cache line number `line` of every row of the next panel of B.
    // If the rows of this panel have no such line, the tile prefetches `fallback`, which is in the
    // cache already. So every tile prefetches an address, and needs no branch.
    void add_to(TileWork<T>& work, std::int64_t line, const void* fallback) const {
      constexpr std::int64_t kLine = 64;
      const bool exists = data != nullptr && (line - 1) * kLine < row_bytes - 1;
      const std::int64_t offset = std::min(line * kLine, row_bytes - 1);
      work.prefetch = exists ? data + offset : static_cast<const std::byte*>(fallback);
      work.prefetch_stride = exists ? stride : 0;
    }
  };

  // Set b and b_step of `work` to the panel of B that begins at column j: in place if tiles can
  // read it there, and otherwise packed, in `panel`. If block.packs_b is true, pack the panel
  // first. Otherwise, an earlier block has packed it.
  void read_panel(const Block<T>& block, std::int64_t j, T* panel, TileWork<T>& work) const {
    const View<T>& b = block.b;
    const T* from = b.data + j * b.row + block.depth.begin * b.column;
    const bool is_in_place = reads_columns_in_place(b, work.columns);
    const std::int64_t width = round_up(work.columns, tile_.lanes);
    work.b = is_in_place ? from : panel;
    work.b_step = is_in_place ? b.column : width;
    if (block.packs_b && !is_in_place)
      tile_.pack({from, b.row, b.column}, work.columns, work.depth, width, panel);
  }

  // Return true if tiles read these columns of B in place, without packing. The columns must be
  // whole vectors, in rows of B that are close together in memory. A matmul of 128 x 784 by 784 x
  // 100 takes 200 us; packing 96 of its columns would take 6 us (Zen 4).
  bool reads_columns_in_place(View<T> b, std::int64_t columns) const {
    constexpr std::int64_t kMaxRowBytes = 1024;
    return b.row == 1 && columns % tile_.lanes == 0 &&
           b.column * static_cast<std::int64_t>(sizeof(T)) < kMaxRowBytes;
  }

  // Return true if tiles read these rows of A in place, without packing. The rows must be whole
  // panels, adjacent in memory, and B must have at most kMaxTiles tiles of columns. The stride from
  // one step of the depth to the next must be less than kMaxStrideBytes. It must not be a multiple
  // of 256 bytes, because the steps would then share few sets of the first-level cache. Packing 784
  // x 128 would take 12 us of a training step of 440 us (a network with layers of 784, 100 and 10,
  // Zen 4).
  bool reads_rows_in_place(View<T> a, std::int64_t rows) const {
    constexpr std::int64_t kMaxStrideBytes = 4096, kConflictBytes = 256, kMaxTiles = 3;
    const std::int64_t bytes = a.column * static_cast<std::int64_t>(sizeof(T));
    return a.row == 1 && rows % tile_.rows == 0 && bytes < kMaxStrideBytes &&
           bytes % kConflictBytes != 0 && num_columns_ <= kMaxTiles * tile_.columns;
  }

  // Return true if GemmTile::multiply_narrow computes a panel of this number of columns.
  bool is_narrow(std::int64_t columns) const { return columns <= tile_.narrow_columns; }

  // Return the number of columns of the next panel, if `left` columns of the block are left. A
  // panel has at most the columns that one tile computes. If the last columns of the block do not
  // fill a vector, GemmTile::multiply_narrow may be able to compute them (is_narrow). They then
  // become a panel of their own, and the panel before them has only whole vectors.
  std::int64_t panel_width(std::int64_t left) const {
    const std::int64_t num_extra = left % tile_.lanes;
    // If a tile and one vector are left, the next panel is one vector smaller than a tile. With
    // AVX-512, a tile has 3 vectors, so the last 4 vectors become panels of 2 + 2, not 3 + 1.
    if (left - num_extra == tile_.columns + tile_.lanes) return tile_.columns - tile_.lanes;
    if (left >= tile_.columns) return tile_.columns;
    return left > num_extra && num_extra > 0 && is_narrow(num_extra) ? left - num_extra : left;
  }

  // Return the memory from which the next panel of B is packed, for a prefetch. `column` is the
  // first column after the current panel. If `column` is in the block, the next panel begins there.
  // If it is not, the next panel is the first panel of this block in the next range of the depth.
  // If there is no next range, it is the first panel of the next block.
  //
  // Return an empty Prefetch if the next panel would begin after the thread's last column, or if B
  // is not stored in rows. If B is stored in rows, a panel is many short pieces that are far apart,
  // which the CPU's prefetcher does not detect.
  Prefetch next_panel(const Block<T>& block, std::int64_t column) const {
    const View<T>& b = block.b;
    std::int64_t row = block.depth.begin;
    if (column >= block.columns.end) {
      row = block.depth.end;
      column = row < depth_ ? block.columns.begin : block.columns.end;
      row = row < depth_ ? row : 0;
    }
    if (b.row != 1 || column >= block.columns_end) return {};
    return {
        reinterpret_cast<const std::byte*>(b.data + row * b.column + column),
        std::min(tile_.columns, block.columns_end - column) * static_cast<std::int64_t>(sizeof(T)),
        b.column * static_cast<std::int64_t>(sizeof(T))};
  }

  GemmTile<T> tile_;
  std::int64_t num_columns_, depth_;
  bool has_relu_, keeps_b_;
};

}  // namespace ngd::kernels::gemm
