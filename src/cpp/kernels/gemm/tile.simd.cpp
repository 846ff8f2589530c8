// SPDX-License-Identifier: Apache-2.0
// The functions of tile.hpp.
//
// A tile has kRows rows and kVectors vectors of columns. Each step of the depth loads kVectors
// vectors of a row of B. For each of the kRows elements of a column of A, it broadcasts the
// element, multiplies it by these vectors, and adds the products to the sums of a row of the tile.
// The sums of a tile fill at least half of the vector registers, and the other registers are for
// the operands. The additions to different sums are independent, so enough multiply-adds run at
// once to hide their latency.
#include "kernels/gemm/tile.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/simd_loops.hpp"
#include "kernels/tiles/transpose.hpp"

namespace ngd::kernels::gemm::NGD_SIMD_LEVEL {

namespace {

constexpr int kVectorBytes = NGD_REGISTER_BYTES;
#if defined(__AVX512F__)
constexpr int kRows = 8, kVectors = 3;
#elif defined(__AVX2__)
constexpr int kRows = 6, kVectors = 2;
#else
constexpr int kRows = 4, kVectors = 2;
#endif

constexpr int kNarrowVectors = 2;

template <class T>
constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(T));
template <class T>
using Vector = typename VectorOf<T, kVectorBytes>::type;
template <class T>
using Stored = typename VectorOf<T, kVectorBytes>::stored;

template <class T>
NGD_INLINE Vector<T> load(const T* from) {
  return *reinterpret_cast<const Stored<T>*>(from);
}
template <class T>
NGD_INLINE void store(Vector<T> value, T* to) {
  *reinterpret_cast<Stored<T>*>(to) = value;
}

template <class Half, int... i>
NGD_INLINE auto concatenate_halves(Half low, Half high, std::integer_sequence<int, i...>) {
  return __builtin_shufflevector(low, high, i...);
}

// Transpose `lines` lines of kLanes elements each: store element p of line i at panel[p * width +
// i].
template <class T, int lines>
NGD_INLINE void transpose_lines(const T* from, std::int64_t stride, std::int64_t width, T* panel) {
  Vector<T> v[lines];
  NGD_UNROLL
  for (int i = 0; i < lines; ++i) v[i] = load(from + i * stride);
  tiles::NGD_SIMD_LEVEL::transpose(v);
  // v[i] now has element p of all lines, for each p from i * kSteps to (i + 1) * kSteps - 1. A line
  // is a row of A or a column of B.
  constexpr int kSteps = kLanes<T> / lines;
  NGD_UNROLL
  for (int i = 0; i < lines; ++i) store(v[i], panel + i * kSteps * width);
}

// Copy `used` lines (rows of A, or columns of B) to a panel. In memory, the same element of
// neighbouring lines must be adjacent (lines.row == 1). Each memcpy copies element p of `batch`
// lines. If fewer than `batch` lines are left at the end, they are copied in smaller batches.
template <class T, int batch>
void copy_lines(View<T> lines, std::int64_t used, std::int64_t depth, std::int64_t width,
                T* panel) {
  for (; used >= batch; used -= batch) {
    for (std::int64_t p = 0; p < depth; ++p)
      std::memcpy(panel + p * width, lines.data + p * lines.column, batch * sizeof(T));
    lines.data += batch;
    panel += batch;
  }
  constexpr int kSmallerBatch = batch > kLanes<T> ? kLanes<T> : batch / 2;
  if constexpr (batch > 1)
    if (used > 0) copy_lines<T, kSmallerBatch>(lines, used, depth, width, panel);
}

// Pack `used` lines, at most `width`, into one panel of `width` lines. The other lines become 0.
template <class T>
void pack_panel(View<T> lines, std::int64_t used, std::int64_t depth, std::int64_t width,
                T* panel) {
  if (used < width) std::fill(panel, panel + width * depth, T(0));
  if (lines.row == 1) return copy_lines<T, kVectors * kLanes<T>>(lines, used, depth, width, panel);
  // The number of lines that are transposed at once: kRows, a whole panel of A, if kRows is smaller
  // than the number of lanes and divides it. Otherwise, it is the number of lanes.
  constexpr int kBatch = kLanes<T> > kRows && kLanes<T> % kRows == 0 ? kRows : kLanes<T>;
  const bool can_transpose = lines.column == 1 && (kBatch == kLanes<T> || width == kBatch);
  const std::int64_t blocks = can_transpose ? used / kBatch * kBatch : 0;
  const std::int64_t steps = depth / kLanes<T> * kLanes<T>;
  for (std::int64_t i = 0; i < blocks; i += kBatch)
    for (std::int64_t p = 0; p < steps; p += kLanes<T>)
      transpose_lines<T, kBatch>(lines.data + i * lines.row + p, lines.row, width,
                                 panel + p * width + i);
  for (std::int64_t i = 0; i < used; ++i)
    for (std::int64_t p = i < blocks ? steps : 0; p < depth; ++p)
      panel[p * width + i] = lines.data[i * lines.row + p * lines.column];
}

// Pack `panels` panels of kRows lines each. A line is a row of A or a column of B. In memory, the
// same element of neighbouring lines must be adjacent (lines.row == 1). So element p of all lines
// is one dense sequence in memory. For each p, kRows elements of it are copied to each panel.
template <class T, int panels>
void copy_panels(View<T> lines, std::int64_t depth, T* panel) {
  for (std::int64_t p = 0; p < depth; ++p) {
    NGD_UNROLL
    for (int i = 0; i < panels; ++i)
      std::memcpy(panel + (i * depth + p) * kRows, lines.data + p * lines.column + i * kRows,
                  kRows * sizeof(T));
  }
}

template <class T>
void pack(View<T> lines, std::int64_t used, std::int64_t depth, std::int64_t width, T* panel) {
  constexpr int kBatch = 4;
  while (used > 0) {
    const bool has_full_batch = lines.row == 1 && width == kRows && used >= kBatch * kRows;
    const std::int64_t num_lines = has_full_batch ? kBatch * kRows : std::min(used, width);
    if (has_full_batch)
      copy_panels<T, kBatch>(lines, depth, panel);
    else
      pack_panel(lines, num_lines, depth, width, panel);
    used -= num_lines;
    lines.data += num_lines * lines.row;
    panel += (has_full_batch ? num_lines : width) * depth;
  }
}

// Store the sums of a partial tile, with the bias and relu.
template <class T>
void finish(const TileWork<T>& work, View<T> sums) {
  for (std::int64_t i = 0; i < work.rows; ++i)
    for (std::int64_t j = 0; j < work.columns; ++j) {
      T* to = work.c + i * work.c_stride + j;
      T sum = sums.data[i * sums.row + j * sums.column];
      if (work.add) sum = *to + sum;
      if (work.bias != nullptr) sum += work.bias[j];
      if (work.relu) sum = sum <= T(0) ? T(0) : sum;
      *to = sum;
    }
}

// Store the sums of a full tile, with the bias and relu.
template <class T, int vectors>
NGD_INLINE void store_tile(const TileWork<T>& work, const Vector<T> (&sums)[kRows][vectors]) {
  NGD_UNROLL
  for (int i = 0; i < kRows; ++i) {
    NGD_UNROLL
    for (int v = 0; v < vectors; ++v) {
      T* to = work.c + i * work.c_stride + v * kLanes<T>;
      Vector<T> sum = sums[i][v];
      if (work.add) sum = load(to) + sum;
      if (work.bias != nullptr) sum += load(work.bias + v * kLanes<T>);
      if (work.relu) sum = sum <= Vector<T>{} ? Vector<T>{} : sum;
      store(sum, to);
    }
  }
}

// Compute a tile of `vectors` vectors of columns. If `strided`, A is read as by
// GemmTile::multiply_strided, which does not need packed rows. Otherwise, A is read in panels, as
// by GemmTile::multiply.
template <class T, int vectors, bool strided>
void multiply_tile(const TileWork<T>& work) {
  const std::int64_t next = strided ? work.a_panel : 1;  // stride of the rows of A, in elements
  constexpr int kColumns = vectors * kLanes<T>;
  Vector<T> sums[kRows][vectors];
  NGD_UNROLL
  for (int i = 0; i < kRows; ++i) {
    NGD_UNROLL
    for (int v = 0; v < vectors; ++v) sums[i][v] = Vector<T>{};
  }
  // Fetch the memory of the result while the sums are computed.
  for (std::int64_t i = 0; i < work.rows; ++i) {
    NGD_UNROLL
    for (int v = 0; v < vectors; ++v)
      __builtin_prefetch(work.c + i * work.c_stride + v * kLanes<T>, 1, 3);
  }
  const T *a = work.a, *b = work.b;
  const std::byte* prefetch = work.prefetch;
  for (std::int64_t p = 0; p < work.depth; ++p, a += work.a_step, b += work.b_step) {
    __builtin_prefetch(prefetch, 0, 2);  // harmless if the address is not mapped
    prefetch += work.prefetch_stride;
    Vector<T> row[vectors];
    NGD_UNROLL
    for (int v = 0; v < vectors; ++v) row[v] = load(b + v * kLanes<T>);
    NGD_UNROLL
    for (int i = 0; i < kRows; ++i) {
      const Vector<T> factor = a[i * next] - Vector<T>{};
      NGD_UNROLL
      for (int v = 0; v < vectors; ++v) sums[i][v] += factor * row[v];
    }
  }
  if (work.rows == kRows && work.columns == kColumns) return store_tile<T, vectors>(work, sums);
  T edge[kRows * kColumns];
  NGD_UNROLL
  for (int i = 0; i < kRows; ++i) {
    NGD_UNROLL
    for (int v = 0; v < vectors; ++v) store(sums[i][v], edge + i * kColumns + v * kLanes<T>);
  }
  finish(work, {edge, kColumns, 1});
}

// Load one element of each of kLanes rows of A, for one step of the depth, from the address `a` on.
// For one step, a panel has kRows adjacent elements. If kLanes is 2 * kRows, the vector needs two
// panels, and `next` is the number of elements from the first panel to the second one. If kLanes is
// kRows, `next` is not used.
template <class T>
NGD_INLINE Vector<T> load_rows(const T* a, std::int64_t next) {
  if constexpr (kLanes<T> == kRows) {
    return load(a);
  } else {
    using Half = VectorOf<T, kVectorBytes / 2>;
    const typename Half::type low = *reinterpret_cast<const typename Half::stored*>(a);
    const typename Half::type high = *reinterpret_cast<const typename Half::stored*>(a + next);
    return concatenate_halves(low, high, std::make_integer_sequence<int, kLanes<T>>());
  }
}

// Compute `columns` columns of a narrow tile (GemmTile::multiply_narrow), from column `first` on.
template <class T, int columns>
void multiply_narrow_tile(const TileWork<T>& work, std::int64_t first) {
  constexpr int kPanels = kLanes<T> / kRows;
  const std::int64_t last = (work.rows - 1) / kRows;  // the last panel of A
  const T* a[kNarrowVectors];
  std::int64_t next[kNarrowVectors];
  Vector<T> sums[kNarrowVectors][columns];
  NGD_UNROLL
  for (int v = 0; v < kNarrowVectors; ++v) {
    const std::int64_t first_panel = std::min<std::int64_t>(v * kPanels, last);
    a[v] = work.a + first_panel * work.a_panel;
    next[v] = first_panel < last ? work.a_panel : 0;
    NGD_UNROLL
    for (int j = 0; j < columns; ++j) sums[v][j] = Vector<T>{};
  }
  const T* b = work.b + first;
  for (std::int64_t p = 0; p < work.depth; ++p, b += work.b_step) {
    Vector<T> rows[kNarrowVectors];
    NGD_UNROLL
    for (int v = 0; v < kNarrowVectors; ++v) rows[v] = load_rows(a[v] + p * work.a_step, next[v]);
    NGD_UNROLL
    for (int j = 0; j < columns; ++j) {
      const Vector<T> factor = b[j] - Vector<T>{};
      NGD_UNROLL
      for (int v = 0; v < kNarrowVectors; ++v) sums[v][j] += factor * rows[v];
    }
  }
  T edge[columns * kNarrowVectors * kLanes<T>];
  NGD_UNROLL
  for (int j = 0; j < columns; ++j) {
    NGD_UNROLL
    for (int v = 0; v < kNarrowVectors; ++v)
      store(sums[v][j], edge + (j * kNarrowVectors + v) * kLanes<T>);
  }
  TileWork<T> narrow_work = work;
  narrow_work.c += first;
  narrow_work.columns = columns;
  if (narrow_work.bias != nullptr) narrow_work.bias += first;
  finish(narrow_work, {edge, 1, kNarrowVectors * kLanes<T>});
}

template <class T>
void multiply_narrow(const TileWork<T>& work) {
  std::int64_t j = 0;
  for (; j + 4 <= work.columns; j += 4) multiply_narrow_tile<T, 4>(work, j);
  if (work.columns - j == 3)
    multiply_narrow_tile<T, 3>(work, j);
  else if (work.columns - j == 2)
    multiply_narrow_tile<T, 2>(work, j);
  else if (work.columns - j == 1)
    multiply_narrow_tile<T, 1>(work, j);
}

template <class T, bool strided>
void multiply(const TileWork<T>& work) {
  static_assert(kVectors <= 3);
  const std::int64_t vectors = (work.columns + kLanes<T> - 1) / kLanes<T>;
  if constexpr (kVectors == 3)
    if (vectors == 3) return multiply_tile<T, 3, strided>(work);
  vectors == 2 ? multiply_tile<T, 2, strided>(work) : multiply_tile<T, 1, strided>(work);
}

template <class T>
constexpr GemmTile<T> tile() {
  GemmTile<T> result{kRows,
                     kVectors * kLanes<T>,
                     kLanes<T>,
                     &pack<T>,
                     &multiply<T, false>,
                     &multiply<T, true>,
                     nullptr,
                     0,
                     0};
  if constexpr (kLanes<T> == kRows || kLanes<T> == 2 * kRows) {
    result.multiply_narrow = &multiply_narrow<T>;
    result.narrow_rows = kNarrowVectors * kLanes<T>;
    result.narrow_columns = kLanes<T> * 3 / 4;
  }
  return result;
}

constexpr GemmTiles kTiles = {tile<float>(), tile<double>(), tile<std::uint32_t>(),
                              tile<std::uint64_t>()};

}  // namespace

const GemmTiles& gemm_tiles() { return kTiles; }

}  // namespace ngd::kernels::gemm::NGD_SIMD_LEVEL
