// SPDX-License-Identifier: Apache-2.0
// The tile of ngd's GEMM: a few rows and columns of C whose sums stay in vector registers. There is
// one implementation per SIMD level and type. blocking.hpp defines C, panel and packing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/simd.hpp"

namespace ngd::kernels::gemm {

// A matrix with any strides. Element (i, j) is data[i * row + j * column].
template <class T>
struct View {
  const T* data;
  std::int64_t row, column;
};

// The work of one tile. For i < rows and j < columns, the sum over p < depth of
// A(i, p) * b[p * b_step + j] is stored in c[i * c_stride + j], or added to it if `add`. Then the
// bias is added and relu is applied, if they are set.
//
// A(i, p) is a[i / R * a_panel + p * a_step + i % R], with R = GemmTile::rows. For one p, the R
// elements of a panel of A are adjacent. A tile reads all R elements even if `rows` is smaller.
template <class T>
struct TileWork {
  std::int64_t depth;
  const T *a, *b;  // packed panels, or the operands themselves
  std::int64_t a_panel, a_step, b_step;
  T* c;
  std::int64_t c_stride, rows, columns;
  bool add = false;
  const T* bias = nullptr;  // one element per column, or null
  bool relu = false;
  // Memory that is read soon. Each step of the depth prefetches one cache line, prefetch_stride
  // bytes after the previous one.
  const std::byte* prefetch = nullptr;
  std::int64_t prefetch_stride = 0;
};

// The functions for tiles, and the size of a tile.
template <class T>
struct GemmTile {
  std::int64_t rows, columns;  // of the largest tile
  std::int64_t lanes;          // elements per vector; a packed panel of B has whole vectors

  // Pack `used` lines (rows of A, or columns of B) of `depth` elements into panels of `width`
  // lines. In a panel, the `width` elements of one step of the depth are adjacent. The last panel
  // is padded with zeros.
  void (*pack)(View<T> lines, std::int64_t used, std::int64_t depth, std::int64_t width, T* panel);
  // Compute one tile of C, as TileWork describes.
  void (*multiply)(const TileWork<T>& work);
  // Compute a tile as `multiply` does, for rows of A that are not packed. Here A(i, p) is
  // a[i * a_panel + p * a_step].
  void (*multiply_strided)(const TileWork<T>& work);

  // Compute a tile as `multiply` does, for few columns. A vector along a row of C would be mostly
  // empty, so each vector is a part of a column of C, with one element per row. For each step of
  // the depth, a vector of A is loaded from one panel, or from several adjacent panels if it has
  // more elements than a panel has rows. The function is null if this SIMD level does not have it.
  void (*multiply_narrow)(const TileWork<T>& work);
  std::int64_t narrow_rows, narrow_columns;  // of the largest tile for multiply_narrow
};

struct GemmTiles {
  GemmTile<float> f32;
  GemmTile<double> f64;
  GemmTile<std::uint32_t> u32;
  GemmTile<std::uint64_t> u64;
};

NGD_DECLARE_SIMD_LEVELS(const GemmTiles& gemm_tiles());

}  // namespace ngd::kernels::gemm
