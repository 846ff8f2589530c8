// SPDX-License-Identifier: Apache-2.0
// The own matrix product, blocked for the caches as in K. Goto and R. van de Geijn, "Anatomy of
// High-Performance Matrix Multiplication" (ACM TOMS 34, 2008), section 4.
//
// A block of B (kDepth x kColumns) is packed once and stays in the second-level cache while blocks
// of A (up to kRows x kDepth) are packed and multiplied with it, tile by tile.
#pragma once

#include <algorithm>
#include <cstring>

#include "base/simd.hpp"
#include "device/threads.hpp"
#include "kernels/fused/tiles.hpp"
#include "kernels/portable/gemm.hpp"
#include "kernels/portable/matmul_shape.hpp"

namespace ngd::kernels::portable {

inline constexpr std::int64_t kRows = 96, kColumns = 480, kDepth = 256;
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

// A matrix that lies anywhere: element (i, j) at data[i * row + j * column].
template <class T>
struct View {
  const T* data;
  std::int64_t row, column;
};

// Packs `count` lines (rows of A, columns of B) of `depth` elements into panels of `width` lines.
template <class T>
void pack(View<T> lines, std::int64_t count, std::int64_t depth, std::int64_t width, T* panels) {
  for (std::int64_t begin = 0; begin < count; begin += width, panels += width * depth) {
    const std::int64_t used = std::min(width, count - begin);
    const T* from = lines.data + begin * lines.row;
    if (used < width) std::fill(panels, panels + width * depth, T(0));
    if (lines.row == 1) {
      for (std::int64_t p = 0; p < depth; ++p)
        std::copy(from + p * lines.column, from + p * lines.column + used, panels + p * width);
    } else {
      for (std::int64_t line = 0; line < used; ++line)
        for (std::int64_t p = 0; p < depth; ++p)
          panels[p * width + line] = from[line * lines.row + p * lines.column];
    }
  }
}

// How one product is cut, and the scratch that each of its threads needs.
struct Blocking {
  std::int64_t pieces = 1;                        // threads at once
  bool by_batch = false;                          // a thread takes whole products, not rows of one
  std::int64_t rows = 1, columns = 1, depth = 1;  // of the packed blocks
  std::int64_t a_elements = 0, b_elements = 0;    // of a piece's scratch

  template <class T>
  Blocking(const MatmulShape& shape, const GemmTile<T>& tile) {
    const std::int64_t products = element_count(shape.batch);
    const std::int64_t work = products * shape.m * shape.n * shape.k;
    pieces = std::clamp<std::int64_t>(work / kGrainWork, 1, device::thread_count());
    by_batch = products >= pieces;
    const std::int64_t share = by_batch ? shape.m : (shape.m + pieces - 1) / pieces;
    rows =
        std::min(round_up(kRows, tile.rows), round_up(std::max<std::int64_t>(share, 1), tile.rows));
    columns = std::min(round_up(kColumns, tile.columns), round_up(shape.n, tile.columns));
    depth = std::clamp<std::int64_t>(shape.k, 1, kDepth);
    a_elements = round_up(rows * depth, 64);
    b_elements = round_up(columns * depth, 64);
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
    const std::int64_t products = element_count(shape_.batch);
    if (blocking_.by_batch) {
      device::parallel_for(blocking_.pieces, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t piece = begin; piece < end; ++piece)
          for (std::int64_t i = products * piece / blocking_.pieces;
               i < products * (piece + 1) / blocking_.pieces; ++i)
            product(i, 1, a, b, bias, out, scratch + piece * piece_elements());
      });
    } else {
      for (std::int64_t i = 0; i < products; ++i)
        product(i, blocking_.pieces, a, b, bias, out, scratch);
    }
  }

 private:
  std::int64_t piece_elements() const { return blocking_.a_elements + blocking_.b_elements; }

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

  void product(std::int64_t i, std::int64_t pieces, const T* a, const T* b, const T* bias, T* out,
               T* scratch) const {
    const MatmulShape& s = shape_;
    const View<T> view_a{a + matrix_of(i, s.batch_a) * s.m * s.k, s.transpose_a ? 1 : s.k,
                         s.transpose_a ? s.m : 1};
    // Columns of B are lines.
    const View<T> view_b{b + matrix_of(i, s.batch_b) * s.k * s.n, s.transpose_b ? s.k : 1,
                         s.transpose_b ? 1 : s.n};
    T* c = out + i * s.m * s.n;
    for (std::int64_t j = 0; j < s.n; j += blocking_.columns) {
      const std::int64_t columns = std::min(blocking_.columns, s.n - j);
      for (std::int64_t p = 0; p < std::max<std::int64_t>(s.k, 1); p += blocking_.depth) {
        const std::int64_t depth = std::min(blocking_.depth, s.k - p);
        T* packed_b = scratch + blocking_.a_elements;
        pack(View<T>{view_b.data + j * view_b.row + p * view_b.column, view_b.row, view_b.column},
             columns, depth, tile_.columns, packed_b);
        device::parallel_for(pieces, 1, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t piece = begin; piece < end; ++piece)
            multiply_rows(piece, pieces,
                          {view_a.data + p * view_a.column, view_a.row, view_a.column}, packed_b,
                          depth, columns, c + j, p > 0, scratch + piece * piece_elements());
        });
      }
      finish(bias == nullptr ? nullptr : bias + j, columns, c + j);
    }
  }

  // One thread's rows of C += A * packed B.
  void multiply_rows(std::int64_t piece, std::int64_t pieces, View<T> a, const T* packed_b,
                     std::int64_t depth, std::int64_t columns, T* c, bool add, T* packed_a) const {
    const std::int64_t panels = (shape_.m + tile_.rows - 1) / tile_.rows;
    const std::int64_t last = std::min(shape_.m, panels * (piece + 1) / pieces * tile_.rows);
    for (std::int64_t i = panels * piece / pieces * tile_.rows; i < last; i += blocking_.rows) {
      const std::int64_t rows = std::min(blocking_.rows, last - i);
      pack(View<T>{a.data + i * a.row, a.row, a.column}, rows, depth, tile_.rows, packed_a);
      for (std::int64_t column = 0; column < columns; column += tile_.columns)
        for (std::int64_t row = 0; row < rows; row += tile_.rows)
          tile_.multiply(depth, packed_a + row * depth, packed_b + column * depth,
                         c + (i + row) * shape_.n + column, shape_.n,
                         std::min(tile_.rows, rows - row),
                         std::min(tile_.columns, columns - column), add);
    }
  }

  void finish(const T* bias, std::int64_t columns, T* c) const {
    const bool relu = !shape_.post.empty();  // once or more: the same
    if (bias == nullptr && !relu) return;
    for (std::int64_t i = 0; i < shape_.m; ++i)
      for (std::int64_t j = 0; j < columns; ++j) {
        T& value = c[i * shape_.n + j];
        if (bias != nullptr) value = value + bias[j];
        if (relu) value = value <= T(0) ? T(0) : value;
      }
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
