// SPDX-License-Identifier: Apache-2.0
// Reductions of dense elements in an order that is the same on every SIMD level, for *.simd.cpp
// files: element i goes to lane i modulo the lanes of four 64-byte vectors, and the lanes are combined
// as a balanced tree.
#pragma once

#include <cstdint>
#include <utility>

#include "base/simd_loops.hpp"

namespace ngd::kernels::tiles::NGD_SIMD_LEVEL {

// Op::combine(a, b) combines two elements, or two vectors lane by lane.
template <class Op, class T>
struct LaneTree {
  static constexpr std::int64_t kLanes = 64 / sizeof(T), kStep = 4 * kLanes;

  // The four vectors, in registers. GCC compiles comparisons of larger vectors lane by lane.
  static constexpr int kParts = 64 / NGD_REGISTER_BYTES;
  static constexpr std::int64_t kPartLanes = kLanes / kParts;
  using Register = typename VectorOf<T, NGD_REGISTER_BYTES>::type;
  using Stored = typename VectorOf<T, NGD_REGISTER_BYTES>::stored;
  using Accumulators = Register[4 * kParts];

  NGD_INLINE Register load(const T* from) { return *reinterpret_cast<const Stored*>(from); }

  NGD_INLINE void fill(Accumulators& v, T value) {
    NGD_UNROLL
    for (int r = 0; r < 4 * kParts; ++r) v[r] = Register{} + value;
  }
  NGD_INLINE void load_step(Accumulators& v, const T* from) {
    NGD_UNROLL
    for (int r = 0; r < 4 * kParts; ++r) v[r] = load(from + r * kPartLanes);
  }

  // Combines the accumulators with whole vectors from element i on, and then with one another.
  // Stores the lanes, and returns the first element that is left.
  NGD_INLINE std::int64_t combine_vectors(Accumulators& v, const T* x, std::int64_t i,
                                          std::int64_t count, T* lanes) {
    for (; i + kStep <= count; i += kStep)
      combine_each(v, x + i, std::make_integer_sequence<int, 4 * kParts>());
    for (; i + kLanes <= count; i += kLanes)
      combine_each(v, x + i, std::make_integer_sequence<int, kParts>());
    NGD_UNROLL
    for (int r = 0; r < kParts; ++r)
      *reinterpret_cast<Stored*>(lanes + r * kPartLanes) = Op::combine(
          Op::combine(v[r], v[r + kParts]), Op::combine(v[r + 2 * kParts], v[r + 3 * kParts]));
    return i;
  }

  NGD_INLINE T combine_lanes(T* lanes) {
    for (std::int64_t width = kLanes / 2; width > 0; width /= 2)
      for (std::int64_t l = 0; l < width; ++l) lanes[l] = Op::combine(lanes[l], lanes[l + width]);
    return lanes[0];
  }

 private:
  // An expression, since GCC loads each vector twice in an unrolled loop.
  template <int... r>
  NGD_INLINE void combine_each(Accumulators& v, const T* from, std::integer_sequence<int, r...>) {
    ((v[r] = Op::combine(v[r], load(from + r * kPartLanes))), ...);
  }
};

}  // namespace ngd::kernels::tiles::NGD_SIMD_LEVEL
