// SPDX-License-Identifier: Apache-2.0
// The lane tree: a reduction of dense elements in an order that is the same on every SIMD level.
// For *.simd.cpp files.
//
// A lane is one element of a vector. There are four accumulators of 64 bytes, with kLanes lanes
// each. A step combines kStep = 4 * kLanes elements with them: element i of a step belongs to lane
// i of the four accumulators together. Whole vectors after the last step are combined with the
// first accumulator. At the end, the four accumulators are combined in pairs, lane by lane. Then
// the lanes of the result are combined: lane l with lane l + kLanes / 2, then with lane l + kLanes
// / 4, and so on. If a SIMD level has smaller registers, an accumulator consists of kParts
// registers, which does not change the order.
#pragma once

#include <cstdint>
#include <utility>

#include "base/simd_loops.hpp"

namespace ngd::kernels::tiles::NGD_SIMD_LEVEL {

// The functions of a lane tree. Op::combine(a, b) combines two elements, or two vectors lane by
// lane.
template <class Op, class T>
struct LaneTree {
  static constexpr std::int64_t kLanes = 64 / sizeof(T), kStep = 4 * kLanes;

  // The four accumulators are arrays of registers. GCC compiles comparisons of vectors that are
  // larger than a register lane by lane.
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
  // Set the accumulators to the first kStep elements.
  NGD_INLINE void load_step(Accumulators& v, const T* from) {
    NGD_UNROLL
    for (int r = 0; r < 4 * kParts; ++r) v[r] = load(from + r * kPartLanes);
  }

  // Combine the accumulators with whole vectors, from element i on. Then combine the accumulators,
  // and store the kLanes lanes of the result. Return the index of the first element that is not
  // combined.
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

  // Return the combination of all lanes.
  NGD_INLINE T combine_lanes(T* lanes) {
    for (std::int64_t width = kLanes / 2; width > 0; width /= 2)
      for (std::int64_t l = 0; l < width; ++l) lanes[l] = Op::combine(lanes[l], lanes[l + width]);
    return lanes[0];
  }

 private:
  // A fold expression instead of an unrolled loop, in which GCC loads each vector twice.
  template <int... r>
  NGD_INLINE void combine_each(Accumulators& v, const T* from, std::integer_sequence<int, r...>) {
    ((v[r] = Op::combine(v[r], load(from + r * kPartLanes))), ...);
  }
};

}  // namespace ngd::kernels::tiles::NGD_SIMD_LEVEL
