// SPDX-License-Identifier: Apache-2.0
// A transpose of small matrices in vector registers, for *.simd.cpp files.
#pragma once

#include <utility>

#include "base/simd_loops.hpp"

namespace ngd::kernels::tiles::NGD_SIMD_LEVEL {

// Return a0 b0 a1 b1 ..., from the second halves of both vectors if `second` is true, and from the
// first halves otherwise.
template <bool second, class Vector, int... i>
NGD_INLINE Vector interleave(Vector a, Vector b, std::integer_sequence<int, i...>) {
  constexpr int kLanes = sizeof...(i), kFirst = second ? kLanes / 2 : 0;
  return __builtin_shufflevector(a, b, (kFirst + i / 2 + i % 2 * kLanes)...);
}

// Transpose `lines` vectors. Afterwards, they contain element 0 of all lines, then element 1 of all
// lines, and so on. `lines` is a power of two, and at most the number of elements of a vector. Each
// round is a perfect shuffle: it interleaves line i with line i + lines / 2.
template <int lines, class Vector>
NGD_INLINE void transpose(Vector (&v)[lines]) {
  constexpr int kLanes = sizeof(v[0]) / sizeof(v[0][0]);
  constexpr auto kEach = std::make_integer_sequence<int, kLanes>();
  NGD_UNROLL
  for (int round = 1; round < lines; round *= 2) {
    Vector w[lines];
    NGD_UNROLL
    for (int i = 0; i < lines / 2; ++i) {
      w[2 * i] = interleave<false>(v[i], v[i + lines / 2], kEach);
      w[2 * i + 1] = interleave<true>(v[i], v[i + lines / 2], kEach);
    }
    NGD_UNROLL
    for (int i = 0; i < lines; ++i) v[i] = w[i];
  }
}

}  // namespace ngd::kernels::tiles::NGD_SIMD_LEVEL
