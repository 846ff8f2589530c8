// SPDX-License-Identifier: Apache-2.0
// See softmax.hpp. Maxima and sums run over kLanes lanes that are then combined as a tree, in the
// same order on every SIMD level.
#include "kernels/fused/softmax.hpp"

#include "kernels/fused/vector_math.hpp"

namespace ngd::kernels::fused::NGD_SIMD_LEVEL {

namespace {

constexpr std::int64_t kLanes = 16;

// NaN, once met, stays.
template <class T>
NGD_INLINE T larger(T a, T b) {
  return b > a || b != b ? b : a;
}

template <class T, class Combine>
NGD_INLINE T reduce_row(const T* x, std::int64_t length, Combine combine) {
  if (length < 2 * kLanes) {
    T result = x[0];
    for (std::int64_t i = 1; i < length; ++i) result = combine(result, x[i]);
    return result;
  }
  T lanes[kLanes];
  for (std::int64_t l = 0; l < kLanes; ++l) lanes[l] = x[l];
  std::int64_t i = kLanes;
  for (; i + kLanes <= length; i += kLanes)
    for (std::int64_t l = 0; l < kLanes; ++l) lanes[l] = combine(lanes[l], x[i + l]);
  for (std::int64_t l = 0; i < length; ++i, ++l) lanes[l] = combine(lanes[l], x[i]);
  for (std::int64_t width = kLanes / 2; width > 0; width /= 2)
    for (std::int64_t l = 0; l < width; ++l) lanes[l] = combine(lanes[l], lanes[l + width]);
  return lanes[0];
}

template <class T>
void exponentials(const T* x, std::int64_t rows, std::int64_t length, T* e, T* maxima, T* sums) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const T* from = x + row * length;
    T* to = e + row * length;
    const T maximum = reduce_row(from, length, [](T a, T b) { return larger(a, b); });
    for (std::int64_t i = 0; i < length; ++i) to[i] = from[i] - maximum;
    maxima[row] = maximum;
  }
  for (std::int64_t i = 0; i < rows * length; ++i) e[i] = exponential(e[i]);
  for (std::int64_t row = 0; row < rows; ++row)
    sums[row] = reduce_row(e + row * length, length, [](T a, T b) { return a + b; });
}

template <class T>
void divide(const T* e, std::int64_t rows, std::int64_t length, const T* sums, const T* scale,
            T* y) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const T sum = sums[row], factor = scale == nullptr ? T(1) : scale[row];
#pragma GCC ivdep
    for (std::int64_t i = row * length; i < (row + 1) * length; ++i) y[i] = e[i] / sum * factor;
  }
}

template <class T>
void logarithms(const T* x, std::int64_t rows, std::int64_t length, const T* maxima, const T* sums,
                T* y) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const T maximum = maxima[row], log_sum = logarithm(sums[row]);
#pragma GCC ivdep
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
