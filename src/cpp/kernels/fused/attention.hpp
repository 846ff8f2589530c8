// SPDX-License-Identifier: Apache-2.0
// The loops of the attention kernels. attention.cpp explains queries, keys, scores, weights and
// logsums. A block of scores is stored transposed, with one row per key and one column per query.
// So the lanes of a vector belong to different queries, and the maxima and sums of queries need no
// combination of lanes.
#pragma once

#include <cstdint>

#include "base/simd.hpp"

namespace ngd::kernels::fused {

inline constexpr std::int64_t kQueries = 64;  // queries per block: the columns of a block of scores

// A matrix with any strides. Element (i, p) is data[i * row + p * column].
template <class T>
struct Factor {
  const T* data;
  std::int64_t row, column;
};

// A matrix whose rows are dense. `stride` is the number of elements from one row to the next.
template <class T>
struct Dense {
  T* data;
  std::int64_t stride;
};

struct Extents {
  std::int64_t rows, columns, depth;
};

// The loops for elements of T at one SIMD level. A block of scores has one row per key, with space
// for the scores of kQueries queries. The loops compute `keys` rows, and in each row only the first
// `columns` scores. `columns` is a multiple of `lanes`.
template <class T>
struct AttentionLoops {
  std::int64_t lanes;  // per vector
  // Store c = a @ b, or add a @ b to c if `add`.
  void (*multiply)(Factor<T> a, Dense<const T> b, Dense<T> c, Extents extents, bool add);
  // Store rows[i][p] * scale in out[p * kQueries + i], for `width` elements of `count` rows. The
  // other elements of the block become 0.
  void (*transpose)(Dense<const T> rows, std::int64_t count, std::int64_t width, T scale, T* out);
  // For i < count, store the dot product of row i of a and row i of b in dots[i]. The further
  // elements, up to dots[kQueries - 1], become 0.
  void (*dot)(Dense<const T> a, Dense<const T> b, std::int64_t count, std::int64_t width, T* dots);
  // Add a mask to the scores. If the mask is -inf, the score becomes -inf, without an addition: the
  // sum of -inf and a score that is NaN or +inf would be NaN, and a hidden key must not affect the
  // result.
  void (*add_mask)(const T* mask, std::int64_t keys, std::int64_t columns, T* scores);
  // The online softmax (Milakov and Gimelshein 2018, arXiv:1805.02867, algorithm 3). Update the
  // maximum and the sum of each query with its scores, and replace the scores by e^(score -
  // maximum). `factors` becomes e^(old maximum - new maximum): the caller multiplies its earlier
  // sums of weighted values by these factors.
  void (*exponentials)(T* scores, std::int64_t keys, std::int64_t columns, T* maxima, T* sums,
                       T* factors);
  // Replace the scores by the weights, e^(score - logsum).
  void (*weights)(T* scores, std::int64_t keys, std::int64_t columns, const T* logsums);
  // Replace the adjoints of the weights by those of the scores, weight * (adjoint - delta) * scale.
  // There is one delta per query: dy . y - dlogsum (see prepare() in attention.cpp).
  void (*slopes)(const T* weights, std::int64_t keys, std::int64_t columns, const T* deltas,
                 T scale, T* adjoints);
  // Multiply a row by a factor.
  void (*scale)(T* row, std::int64_t width, T factor);
};

struct AttentionTable {
  AttentionLoops<float> f32;
  AttentionLoops<double> f64;
};

NGD_DECLARE_SIMD_LEVELS(const AttentionTable& attention_table());

}  // namespace ngd::kernels::fused
