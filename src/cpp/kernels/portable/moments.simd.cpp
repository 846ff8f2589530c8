// SPDX-License-Identifier: Apache-2.0
// See moments.hpp.
#include "kernels/portable/moments.hpp"

#include "kernels/portable/reduce.hpp"
#include "kernels/simd_loops.hpp"

namespace ngd::kernels::portable::NGD_SIMD_LEVEL {

namespace {

// Vectors of columns whose sums are kept in registers.
#if defined(__AVX512F__)
constexpr int kStripe = 4;
#else
constexpr int kStripe = 1;
#endif

template <class T>
struct Loops {
  using Vector = typename VectorOf<T>::type;
  static constexpr std::int64_t kLanes = 64 / sizeof(T), kStep = 2 * kLanes, kBlock = 64 * kStep;

  NGD_INLINE Vector load(const T* from) {
    return *reinterpret_cast<const typename VectorOf<T>::stored*>(from);
  }

  NGD_INLINE double total(Vector v) {
    T lanes[kLanes];
    __builtin_memcpy(lanes, &v, sizeof(v));
    double sum = 0;
    for (std::int64_t l = 0; l < kLanes; ++l) sum += static_cast<double>(lanes[l]);
    return sum;
  }

  static void row(const void* elements, std::int64_t count, const void* shift_, double* sum,
                  double* square) {
    const T* x = static_cast<const T*>(elements);
    const T shift = *static_cast<const T*>(shift_);
    for (std::int64_t begin = 0; begin < count; begin += kBlock) {
      const std::int64_t end = count - begin < kBlock ? count : begin + kBlock;
      Vector s0{}, s1{}, q0{}, q1{};
      std::int64_t i = begin;
      for (; i + kStep <= end; i += kStep) {
        const Vector a = load(x + i) - shift, b = load(x + i + kLanes) - shift;
        s0 += a;
        s1 += b;
        q0 += a * a;
        q1 += b * b;
      }
      T last_sum = 0, last_square = 0;
      for (; i < end; ++i) {
        const T a = x[i] - shift;
        last_sum += a;
        last_square += a * a;
      }
      *sum += total(s0 + s1) + static_cast<double>(last_sum);
      *square += total(q0 + q1) + static_cast<double>(last_square);
    }
  }

  // One block of rows of `vectors` whole vectors of columns.
  template <int vectors>
  NGD_INLINE void stripe(const T* x, std::int64_t rows, std::int64_t stride, const T* shifts,
                         double* sums, double* squares) {
    Vector shift[vectors], s[vectors], q[vectors];
    for (int k = 0; k < vectors; ++k) {
      shift[k] = load(shifts + k * kLanes);
      s[k] = q[k] = Vector{};
    }
    for (std::int64_t r = 0; r < rows; ++r)
      for (int k = 0; k < vectors; ++k) {
        const Vector a = load(x + r * stride + k * kLanes) - shift[k];
        s[k] += a;
        q[k] += a * a;
      }
    T sum[vectors * kLanes], square[vectors * kLanes];
    __builtin_memcpy(sum, s, sizeof(s));
    __builtin_memcpy(square, q, sizeof(q));
    for (int j = 0; j < vectors * kLanes; ++j) {
      sums[j] += static_cast<double>(sum[j]);
      squares[j] += static_cast<double>(square[j]);
    }
  }

  // The same of one column.
  NGD_INLINE void line(const T* x, std::int64_t rows, std::int64_t stride, T shift, double* sum,
                       double* square) {
    T s = 0, q = 0;
    for (std::int64_t r = 0; r < rows; ++r) {
      const T a = x[r * stride] - shift;
      s += a;
      q += a * a;
    }
    *sum += static_cast<double>(s);
    *square += static_cast<double>(q);
  }

  static void columns(const void* elements, std::int64_t rows, std::int64_t stride,
                      std::int64_t width, const void* shifts_, double* sums, double* squares) {
    const T* shifts = static_cast<const T*>(shifts_);
    for (std::int64_t begin = 0; begin < rows; begin += kRowBlock) {
      const T* x = static_cast<const T*>(elements) + begin * stride;
      const std::int64_t block = rows - begin < kRowBlock ? rows - begin : kRowBlock;
      std::int64_t j = 0;
      for (; j + kStripe * kLanes <= width; j += kStripe * kLanes)
        stripe<kStripe>(x + j, block, stride, shifts + j, sums + j, squares + j);
      for (; j + kLanes <= width; j += kLanes)
        stripe<1>(x + j, block, stride, shifts + j, sums + j, squares + j);
      for (; j < width; ++j) line(x + j, block, stride, shifts[j], sums + j, squares + j);
    }
  }
};

constexpr MomentTable kTable = {{&Loops<float>::row, &Loops<float>::columns},
                                {&Loops<double>::row, &Loops<double>::columns}};

}  // namespace

const MomentTable& moment_table() { return kTable; }

}  // namespace ngd::kernels::portable::NGD_SIMD_LEVEL
