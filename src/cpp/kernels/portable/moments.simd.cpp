// SPDX-License-Identifier: Apache-2.0
// See moments.hpp.
#include "kernels/portable/moments.hpp"

#include "kernels/portable/reduce.hpp"
#include "kernels/simd_loops.hpp"

namespace ngd::kernels::portable::NGD_SIMD_LEVEL {

namespace {

template <class T>
struct Loops {
  using Vector = typename VectorOf<T>::type;
  static constexpr std::int64_t kLanes = 64 / sizeof(T), kStep = 2 * kLanes, kBlock = 64 * kStep;
  static constexpr std::int64_t kColumns = 256;

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

  static void columns(const void* elements, std::int64_t rows, std::int64_t stride,
                      std::int64_t width, const void* shifts_, double* sums, double* squares) {
    for (std::int64_t begin = 0; begin < rows; begin += kRowBlock)
      for (std::int64_t column = 0; column < width; column += kColumns) {
        const T* __restrict shifts = static_cast<const T*>(shifts_) + column;
        const T* x = static_cast<const T*>(elements) + begin * stride + column;
        const std::int64_t block = rows - begin < kRowBlock ? rows - begin : kRowBlock;
        const std::int64_t piece = width - column < kColumns ? width - column : kColumns;
        alignas(64) T s[kColumns] = {}, q[kColumns] = {};
        for (std::int64_t r = 0; r < block; ++r) {
          const T* __restrict from = x + r * stride;
          NGD_INDEPENDENT
          for (std::int64_t j = 0; j < piece; ++j) {
            const T a = from[j] - shifts[j];
            s[j] += a;
            q[j] += a * a;
          }
        }
        for (std::int64_t j = 0; j < piece; ++j) {
          sums[column + j] += static_cast<double>(s[j]);
          squares[column + j] += static_cast<double>(q[j]);
        }
      }
  }
};

constexpr MomentTable kTable = {{&Loops<float>::row, &Loops<float>::columns},
                                {&Loops<double>::row, &Loops<double>::columns}};

}  // namespace

const MomentTable& moment_table() { return kTable; }

}  // namespace ngd::kernels::portable::NGD_SIMD_LEVEL
