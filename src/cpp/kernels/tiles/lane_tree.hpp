// SPDX-License-Identifier: Apache-2.0
// The lane tree: a reduction of dense elements in an order that is the same on every SIMD level.
// For *.simd.cpp files.
//
// A lane is one element of a vector. There are four accumulators, 0 to 3. Each is a vector of 64
// bytes, which has kLanes lanes. The reduction has these steps:
//   1. While at least kStep = 4 * kLanes elements are left, combine the next kLanes elements with
//      accumulator 0, lane by lane, the next kLanes elements with accumulator 1, and so on.
//   2. While at least kLanes elements are left, combine the next kLanes elements with
//      accumulator 0.
//   3. Combine accumulators 0 and 1 lane by lane, then 2 and 3, and then both results. This gives
//      one vector.
//   4. In this vector, combine lane l with lane l + kLanes / 2, then with lane l + kLanes / 4, and
//      so on, until one lane is left.
// The caller combines the last elements, which are fewer than kLanes. If the registers of a SIMD
// level are smaller than 64 bytes, an accumulator consists of several registers (kParts), which
// does not change the order.
#pragma once

#include <cstdint>
#include <utility>

#include "base/simd_loops.hpp"

namespace ngd::kernels::tiles::NGD_SIMD_LEVEL {

// The functions of the lane tree, the reduction of dense elements that the head of this file
// describes. T is the type of the elements. Op::combine(a, b) combines two elements, or two vectors
// lane by lane.
template <class Op, class T>
struct LaneTree {
  static constexpr std::int64_t kLanes = 64 / sizeof(T), kStep = 4 * kLanes;

  // Each of the four accumulators consists of kParts registers. It is not one large vector, because
  // GCC compiles a comparison of vectors that are larger than a register to scalar code, one lane
  // at a time.
  static constexpr int kParts = 64 / NGD_REGISTER_BYTES;
  static constexpr std::int64_t kPartLanes = kLanes / kParts;
  using Register = typename VectorOf<T, NGD_REGISTER_BYTES>::type;
  using Stored = typename VectorOf<T, NGD_REGISTER_BYTES>::stored;
  using Accumulators = Register[4 * kParts];

  // Return a register with the kPartLanes elements from `from` on.
  NGD_INLINE Register load(const T* from) { return *reinterpret_cast<const Stored*>(from); }

  // Set all lanes of the four accumulators to `value`.
  NGD_INLINE void fill(Accumulators& v, T value) {
    NGD_UNROLL
    for (int r = 0; r < 4 * kParts; ++r) v[r] = Register{} + value;
  }
  // Set the accumulators to the first kStep elements.
  NGD_INLINE void load_step(Accumulators& v, const T* from) {
    NGD_UNROLL
    for (int r = 0; r < 4 * kParts; ++r) v[r] = load(from + r * kPartLanes);
  }

  // Combine the elements x[i] to x[count - 1] with the four accumulators: kStep elements at a time
  // with all four, and then kLanes elements at a time with accumulator 0. The last elements, fewer
  // than kLanes, are not combined. Then combine the four accumulators to one, and store its kLanes
  // lanes in `lanes`. Return the index in x of the first element that is not combined.
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

  // Reduce the kLanes elements of `lanes` to one by Op::combine, and return it. Overwrite `lanes`.
  NGD_INLINE T combine_lanes(T* lanes) {
    for (std::int64_t width = kLanes / 2; width > 0; width /= 2)
      for (std::int64_t l = 0; l < width; ++l) lanes[l] = Op::combine(lanes[l], lanes[l + width]);
    return lanes[0];
  }

 private:
  // Combine register v[r] with the kPartLanes elements that begin at from[r * kPartLanes], for each
  // r. The code is a fold expression, because GCC loads each vector twice if it is an unrolled
  // loop.
  template <int... r>
  NGD_INLINE void combine_each(Accumulators& v, const T* from, std::integer_sequence<int, r...>) {
    ((v[r] = Op::combine(v[r], load(from + r * kPartLanes))), ...);
  }
};

}  // namespace ngd::kernels::tiles::NGD_SIMD_LEVEL
