// SPDX-License-Identifier: Apache-2.0
// The loops of the attention kernels. Scores are stored transposed, with one row per key and one column
// per query. So maxima and sums are over rows, and each lane belongs to one query.
#pragma once

#include <cstdint>

#include "base/simd.hpp"

namespace ngd::kernels::fused {

inline constexpr std::int64_t kQueries = 64;  // the columns of a block of scores

// A matrix with any strides: element (i, p) is data[i * row + p * column].
template <class T>
struct Factor {
  const T* data;
  std::int64_t row, column;
};

// A matrix whose rows are dense, `stride` elements apart.
template <class T>
struct Dense {
  T* data;
  std::int64_t stride;
};

struct Extents {
  std::int64_t rows, columns, depth;
};

// A block of scores has `keys` rows of kQueries columns. The first `columns` are used: a whole number
// of vectors.
template <class T>
struct AttentionLoops {
  std::int64_t lanes;  // of a vector
  // c = a @ b, or c += a @ b if `add`.
  void (*multiply)(Factor<T> a, Dense<const T> b, Dense<T> c, Extents extents, bool add);
  // out[p * kQueries + i] = rows[i][p] * scale, for `width` elements of `count` rows. The rest of the
  // block becomes 0.
  void (*transpose)(Dense<const T> rows, std::int64_t count, std::int64_t width, T scale, T* out);
  // dots[i] = the sum of a[i][p] * b[i][p], for kQueries rows; 0 from row `count` on.
  void (*dot)(Dense<const T> a, Dense<const T> b, std::int64_t count, std::int64_t width, T* dots);
  // Add a mask. Scores become -inf where the mask is -inf.
  void (*add_mask)(const T* mask, std::int64_t keys, std::int64_t columns, T* scores);
  // Online softmax (Milakov and Gimelshein 2018, arXiv:1805.02867, algorithm 3): scores become
  // e^(score - maximum), and maxima and sums are updated. The caller multiplies its earlier sums of
  // values with `factors`.
  void (*exponentials)(T* scores, std::int64_t keys, std::int64_t columns, T* maxima, T* sums,
                       T* factors);
  // Scores become weights, e^(score - logsum).
  void (*weights)(T* scores, std::int64_t keys, std::int64_t columns, const T* logsums);
  // The adjoints of the weights become those of the scores: weight * (adjoint - delta) * scale.
  void (*slopes)(const T* weights, std::int64_t keys, std::int64_t columns, const T* deltas,
                 T scale, T* adjoints);
  // row[p] *= factor.
  void (*scale)(T* row, std::int64_t width, T factor);
};

struct AttentionTable {
  AttentionLoops<float> f32;
  AttentionLoops<double> f64;
};

NGD_DECLARE_SIMD_LEVELS(const AttentionTable& attention_table());

}  // namespace ngd::kernels::fused
