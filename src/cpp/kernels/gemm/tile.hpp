// SPDX-License-Identifier: Apache-2.0
// The register tile of the own matrix product, one a SIMD level and type.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/simd.hpp"

namespace ngd::kernels::gemm {

// A matrix that lies anywhere: element (i, j) at data[i * row + j * column].
template <class T>
struct View {
  const T* data;
  std::int64_t row, column;
};

// c[i * c_stride + j] (+)= sum over p < depth of A(i, p) * b[p * b_step + j], for i < rows, j < columns.
// Behind it a bias and relu, if they are wanted.
//
// A(i, p) is a[i / R * a_panel + p * a_step + i % R]: R rows of A side by side, and all R are read.
template <class T>
struct TileWork {
  std::int64_t depth;
  const T *a, *b;  // of A and B, which are packed, or lie where they are
  std::int64_t a_panel, a_step, b_step;
  T* c;
  std::int64_t c_stride, rows, columns;
  bool add = false;
  const T* bias = nullptr;  // [columns]
  bool relu = false;
  // Memory that is read soon. Each step of depth fetches a line of it, so many bytes behind the last.
  const std::byte* ahead = nullptr;
  std::int64_t ahead_stride = 0;
};

template <class T>
struct GemmTile {
  std::int64_t rows, columns;  // the most
  std::int64_t lanes;          // a panel of B has a multiple of so many columns

  // Packs `used` lines (rows of A, columns of B) of `depth` elements into panels of `width` lines,
  // the last filled up with zeros.
  void (*pack)(View<T> lines, std::int64_t used, std::int64_t depth, std::int64_t width, T* panel);
  void (*multiply)(const TileWork<T>& work);
  // The same where rows of A are a_panel elements apart: A(i, p) is a[i * a_panel + p * a_step].
  void (*multiply_apart)(const TileWork<T>& work);

  // The same for some columns, with a vector along the rows, of several panels of A side by side: a
  // vector of these columns would be mostly empty. Null: this level has none.
  void (*multiply_turned)(const TileWork<T>& work);
  std::int64_t turned_rows, turned_columns;  // the most
};

struct GemmTiles {
  GemmTile<float> f32;
  GemmTile<double> f64;
  GemmTile<std::uint32_t> u32;
  GemmTile<std::uint64_t> u64;
};

NGD_DECLARE_SIMD_LEVELS(const GemmTiles& gemm_tiles());

}  // namespace ngd::kernels::gemm
