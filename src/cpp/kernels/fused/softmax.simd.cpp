// SPDX-License-Identifier: Apache-2.0
// The loops of softmax.hpp. The lane tree (tiles/lane_tree.hpp) reduces long rows to their maxima
// and sums, in an order that is the same on every SIMD level. The elements after the last whole
// vector are combined at the end.
#include "kernels/fused/softmax.hpp"

#include "kernels/tiles/lane_tree.hpp"
#include "kernels/tiles/vector_math.hpp"

namespace ngd::kernels::fused::NGD_SIMD_LEVEL {

using namespace tiles::NGD_SIMD_LEVEL;

namespace {

// The larger of two scalars, or of two vectors lane by lane. NaN propagates.
struct Larger {
  template <class V>
  NGD_INLINE V combine(V a, V b) {
    return ((b > a) | (b != b)) ? b : a;
  }
};
struct Sum {
  template <class V>
  NGD_INLINE V combine(V a, V b) {
    return a + b;
  }
};

// Combine the elements of a row by Op. The row has at least one element.
template <class Op, class T>
NGD_INLINE T reduce_row(const T* x, std::int64_t length) {
  using Tree = LaneTree<Op, T>;
  std::int64_t i = 1;
  T result = x[0];
  if (length >= Tree::kStep) {
    typename Tree::Accumulators v;
    Tree::load_step(v, x);
    T lanes[Tree::kLanes];
    i = Tree::combine_vectors(v, x, Tree::kStep, length, lanes);
    result = Tree::combine_lanes(lanes);
  }
  for (; i < length; ++i) result = Op::combine(result, x[i]);
  return result;
}

template <class T>
void exponentials(const T* x, std::int64_t rows, std::int64_t length, T* e, T* maxima, T* sums) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const T* from = x + row * length;
    T* to = e + row * length;
    const T maximum = reduce_row<Larger>(from, length);
    for (std::int64_t i = 0; i < length; ++i) to[i] = from[i] - maximum;
    maxima[row] = maximum;
  }
  for (std::int64_t i = 0; i < rows * length; ++i) e[i] = exponential(e[i]);
  for (std::int64_t row = 0; row < rows; ++row)
    sums[row] = reduce_row<Sum>(e + row * length, length);
}

template <class T>
void divide(const T* e, std::int64_t rows, std::int64_t length, const T* sums, const T* scale,
            T* y) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const T factor = (scale == nullptr ? T(1) : scale[row]) / sums[row];
    NGD_INDEPENDENT
    for (std::int64_t i = row * length; i < (row + 1) * length; ++i) y[i] = e[i] * factor;
  }
}

template <class T>
void logarithms(const T* x, std::int64_t rows, std::int64_t length, const T* maxima, const T* sums,
                T* y) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const T maximum = maxima[row], log_sum = logarithm(sums[row]);
    NGD_INDEPENDENT
    for (std::int64_t i = row * length; i < (row + 1) * length; ++i)
      y[i] = (x[i] - maximum) - log_sum;
  }
}

template <class T>
constexpr SoftmaxLoops<T> loops() {
  return {&exponentials<T>, &divide<T>, &logarithms<T>};
}

constexpr SoftmaxTable kTable = {loops<float>(), loops<double>()};

}  // namespace

const SoftmaxTable& softmax_table() { return kTable; }

}  // namespace ngd::kernels::fused::NGD_SIMD_LEVEL
