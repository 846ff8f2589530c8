// SPDX-License-Identifier: Apache-2.0
// See softmax.hpp. Maxima and sums of long rows run over the lanes of four vectors, which are then
// combined as a tree: the same order on every SIMD level.
#include "kernels/fused/softmax.hpp"

#include "kernels/tiles/vector_math.hpp"

namespace ngd::kernels::fused::NGD_SIMD_LEVEL {

using namespace tiles::NGD_SIMD_LEVEL;

namespace {

// Of scalars or vectors. NaN, once met, stays.
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

template <class Op, class T>
NGD_INLINE T reduce_row(const T* x, std::int64_t length) {
  using Vector = typename VectorOf<T>::type;
  using Stored = typename VectorOf<T>::stored;
  constexpr std::int64_t kLanes = 64 / sizeof(T), kStep = 4 * kLanes;
  std::int64_t i = 0;
  T result = x[0];
  if (length >= kStep) {
    const auto load = [x](std::int64_t at) -> Vector {
      return *reinterpret_cast<const Stored*>(x + at);
    };
    Vector v0 = load(0), v1 = load(kLanes), v2 = load(2 * kLanes), v3 = load(3 * kLanes);
    for (i = kStep; i + kStep <= length; i += kStep) {
      v0 = Op::combine(v0, load(i));
      v1 = Op::combine(v1, load(i + kLanes));
      v2 = Op::combine(v2, load(i + 2 * kLanes));
      v3 = Op::combine(v3, load(i + 3 * kLanes));
    }
    for (; i + kLanes <= length; i += kLanes) v0 = Op::combine(v0, load(i));
    v0 = Op::combine(Op::combine(v0, v1), Op::combine(v2, v3));
    T lanes[kLanes];
    *reinterpret_cast<Stored*>(lanes) = v0;
    for (std::int64_t width = kLanes / 2; width > 0; width /= 2)
      for (std::int64_t l = 0; l < width; ++l) lanes[l] = Op::combine(lanes[l], lanes[l + width]);
    result = lanes[0];
  } else {
    i = 1;
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
