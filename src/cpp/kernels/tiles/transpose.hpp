// SPDX-License-Identifier: Apache-2.0
// A transpose of small matrices in vector registers, for *.simd.cpp files.
#pragma once

#include <utility>

#include "base/simd_loops.hpp"

namespace ngd::kernels::tiles::NGD_SIMD_LEVEL {

// Interleave the second halves of vectors a and b if `second` is true, and their first halves
// otherwise. Return the vector: element 0 of the half of a, element 0 of the half of b, element 1
// of the half of a, and so on.
template <bool second, class Vector, int... i>
NGD_INLINE Vector interleave(Vector a, Vector b, std::integer_sequence<int, i...>) {
  constexpr int kLanes = sizeof...(i), kFirst = second ? kLanes / 2 : 0;
  return __builtin_shufflevector(a, b, (kFirst + i / 2 + i % 2 * kLanes)...);
}

// Transpose a matrix whose rows are the `lines` vectors v[i]. Afterwards, v has the elements of the
// transposed matrix in row-major order: element 0 of each line, then element 1 of each line, and so
// on. `lines` is a power of two, and at most the number of elements of a vector. Each of the
// log2(lines) rounds interleaves line i with line i + lines / 2, for each i < lines / 2.
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
