// SPDX-License-Identifier: Apache-2.0
// The implementation of moments.hpp, compiled once per SIMD level.
#include "kernels/fallback/moments.hpp"

#include "base/simd_loops.hpp"
#include "kernels/reduce/loops.hpp"

namespace ngd::kernels::fallback::NGD_SIMD_LEVEL {

using reduce::kRowBlock;

namespace {

// The loops of moments.hpp for elements of T. row() sums blocks of kBlock elements, and columns()
// sums blocks of kRowBlock rows.
template <class T>
struct Loops {
  using Vector = typename VectorOf<T>::type;
  static constexpr std::int64_t kLanes = 64 / sizeof(T), kStep = 2 * kLanes, kBlock = 64 * kStep;
  using Register = typename VectorOf<T, NGD_REGISTER_BYTES>::type;
  using Stored = typename VectorOf<T, NGD_REGISTER_BYTES>::stored;
  static constexpr std::int64_t kColumns = NGD_REGISTER_BYTES / sizeof(T), kStripe = 4 * kColumns;

  NGD_INLINE Vector load(const T* from) {
    return *reinterpret_cast<const typename VectorOf<T>::stored*>(from);
  }

  // Return the sum of all lanes, computed in float64.
  NGD_INLINE double total(Vector v) {
    T lanes[kLanes];
    __builtin_memcpy(lanes, &v, sizeof(v));
    double sum = 0;
    for (std::int64_t l = 0; l < kLanes; ++l) sum += static_cast<double>(lanes[l]);
    return sum;
  }

  // Implement MomentLoops::row of moments.hpp.
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

  // The shifts, sums and sums of squares of up to kStripe neighbouring columns.
  struct Stripe {
    T shifts[kStripe], sums[kStripe], squares[kStripe];
  };

  // In each of `rows` rows, read the first `vectors` * kColumns columns. Add the difference of
  // each element from its column's shift to `sums`, and the square of the difference to `squares`.
  // The sums stay in registers.
  template <int vectors>
  NGD_INLINE void add(const T* x, std::int64_t rows, std::int64_t stride, const T* shifts, T* sums,
                      T* squares) {
    Register shift[vectors], s[vectors], q[vectors];
    NGD_UNROLL
    for (int k = 0; k < vectors; ++k) {
      shift[k] = *reinterpret_cast<const Stored*>(shifts + k * kColumns);
      s[k] = *reinterpret_cast<const Stored*>(sums + k * kColumns);
      q[k] = *reinterpret_cast<const Stored*>(squares + k * kColumns);
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      NGD_UNROLL
      for (int k = 0; k < vectors; ++k) {
        const Register a =
            *reinterpret_cast<const Stored*>(x + r * stride + k * kColumns) - shift[k];
        s[k] += a;
        q[k] += a * a;
      }
    }
    NGD_UNROLL
    for (int k = 0; k < vectors; ++k) {
      *reinterpret_cast<Stored*>(sums + k * kColumns) = s[k];
      *reinterpret_cast<Stored*>(squares + k * kColumns) = q[k];
    }
  }

  // Add `rows` rows of at most kStripe columns to the sums, one vector of columns at a time. The
  // last vector may have more lanes than there are columns left. Its other lanes then read elements
  // after the last column, and the sums of these lanes are ignored. In the last rows, such a read
  // could go beyond the end of the data. These rows are read one element at a time.
  NGD_INLINE void add(const T* x, std::int64_t rows, std::int64_t stride, std::int64_t width,
                      Stripe& block) {
    if (width == kStripe) return add<4>(x, rows, stride, block.shifts, block.sums, block.squares);
    for (std::int64_t j = 0; j < width; j += kColumns) {
      const std::int64_t readable = (rows - 1) * stride + width - j;
      std::int64_t num_vector_rows = rows;
      while (num_vector_rows > 0 && (num_vector_rows - 1) * stride + kColumns > readable)
        --num_vector_rows;
      add<1>(x + j, num_vector_rows, stride, block.shifts + j, block.sums + j, block.squares + j);
      for (std::int64_t r = num_vector_rows; r < rows; ++r)
        for (std::int64_t k = j; k < width; ++k) {
          const T a = x[r * stride + k] - block.shifts[k];
          block.sums[k] += a;
          block.squares[k] += a * a;
        }
    }
  }

  // Implement MomentLoops::columns of moments.hpp.
  static void columns(const void* elements, std::int64_t rows, std::int64_t stride,
                      std::int64_t width, const void* shifts_, double* sums, double* squares) {
    const T* shifts = static_cast<const T*>(shifts_);
    for (std::int64_t begin = 0; begin < rows; begin += kRowBlock) {
      const T* x = static_cast<const T*>(elements) + begin * stride;
      const std::int64_t block = rows - begin < kRowBlock ? rows - begin : kRowBlock;
      for (std::int64_t j = 0; j < width; j += kStripe) {
        const std::int64_t part = width - j < kStripe ? width - j : kStripe;
        Stripe stripe{};
        for (std::int64_t k = 0; k < part; ++k) stripe.shifts[k] = shifts[j + k];
        add(x + j, block, stride, part, stripe);
        for (std::int64_t k = 0; k < part; ++k) {
          sums[j + k] += static_cast<double>(stripe.sums[k]);
          squares[j + k] += static_cast<double>(stripe.squares[k]);
        }
      }
    }
  }
};

constexpr MomentTable kTable = {{&Loops<float>::row, &Loops<float>::columns},
                                {&Loops<double>::row, &Loops<double>::columns}};

}  // namespace

const MomentTable& moment_table() { return kTable; }

}  // namespace ngd::kernels::fallback::NGD_SIMD_LEVEL
