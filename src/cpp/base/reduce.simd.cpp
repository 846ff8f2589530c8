// SPDX-License-Identifier: Apache-2.0
// The loops behind base/reduce.hpp, vectorized by the compiler.
//
// A range is cut into blocks that stay in the first-level cache. In each block a leaf combines two
// to four sources in registers; more sources are split into the left subtree (the largest power of
// two below n) and the rest, each reduced to a block of its own, and those two are combined.
// Two-byte floats are widened to float32 block by block, and narrowed once at the end.
#include "base/reduce.hpp"

#include <bit>
#include <cstring>
#include <type_traits>

#include "base/dtype.hpp"

#if defined(__F16C__)
#include <immintrin.h>
#endif

// A destination may be one of the sources, element on element: no iteration depends on another.
#if defined(__clang__)
#define NGD_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define NGD_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace ngd::NGD_SIMD_LEVEL {

namespace {

constexpr std::size_t kBlock = 1024;  // elements: n sources and a result fit 48 KiB for n <= 4

struct Add {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(a + b);
  }
};

struct Multiply {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(T{1} * 1u * a * b);  // 1u: two uint16_t would overflow int
  }
  static float apply(float a, float b) { return a * b; }
  static double apply(double a, double b) { return a * b; }
};

// `a` wins where it is NaN, `b` where it is: a NaN fails every comparison.
struct Least {
  template <class T>
  static T apply(T a, T b) {
    return (a < b) | (a != a) ? a : b;
  }
};

struct Greatest {
  template <class T>
  static T apply(T a, T b) {
    return (a > b) | (a != a) ? a : b;
  }
};

template <class Op, class T, int N>
void leaf(const T* s0, const T* s1, const T* s2, const T* s3, T* out, std::size_t count) {
  NGD_INDEPENDENT
  for (std::size_t i = 0; i < count; ++i) {
    const T left = Op::apply(s0[i], s1[i]);
    if constexpr (N == 2) out[i] = left;
    if constexpr (N == 3) out[i] = Op::apply(left, s2[i]);
    if constexpr (N == 4) out[i] = Op::apply(left, Op::apply(s2[i], s3[i]));
  }
}

template <class T>
const T* at(const void* source, std::size_t offset) {
  return static_cast<const T*>(source) + offset;
}

void widen_bf16(const void* source, float* destination, std::size_t count) {
  const auto* in = static_cast<const BFloat16*>(source);
  NGD_INDEPENDENT
  for (std::size_t i = 0; i < count; ++i) destination[i] = static_cast<float>(in[i]);
}

void narrow_bf16(const float* source, void* destination, std::size_t count) {
  auto* out = static_cast<BFloat16*>(destination);
  NGD_INDEPENDENT
  for (std::size_t i = 0; i < count; ++i) out[i] = BFloat16(source[i]);
}

void widen_f16(const void* source, float* destination, std::size_t count) {
  const auto* in = static_cast<const Float16*>(source);
  std::size_t i = 0;
#if defined(__F16C__)
  for (; i + 8 <= count; i += 8) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i));
    _mm256_storeu_ps(destination + i, _mm256_cvtph_ps(half));
  }
#endif
  NGD_INDEPENDENT
  for (std::size_t k = i; k < count; ++k) destination[k] = static_cast<float>(in[k]);
}

void narrow_f16(const float* source, void* destination, std::size_t count) {
  auto* out = static_cast<Float16*>(destination);
  std::size_t i = 0;
#if defined(__F16C__)
  for (; i + 8 <= count; i += 8) {
    const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(source + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), half);
  }
#endif
  NGD_INDEPENDENT
  for (std::size_t k = i; k < count; ++k) out[k] = Float16(source[k]);
}

using Widen = void (*)(const void*, float*, std::size_t);

// The tree over `n` sources at `offset`, to `out`, which for n > 4 is none of the sources.
template <class Op, class T>
void tree(const void* const* s, int n, std::size_t offset, T* out, std::size_t count) {
  if (n == 1) {
    std::memmove(out, at<T>(s[0], offset), count * sizeof(T));
  } else if (n == 2) {
    leaf<Op, T, 2>(at<T>(s[0], offset), at<T>(s[1], offset), nullptr, nullptr, out, count);
  } else if (n == 3) {
    leaf<Op, T, 3>(at<T>(s[0], offset), at<T>(s[1], offset), at<T>(s[2], offset), nullptr, out,
                   count);
  } else if (n == 4) {
    leaf<Op, T, 4>(at<T>(s[0], offset), at<T>(s[1], offset), at<T>(s[2], offset),
                   at<T>(s[3], offset), out, count);
  } else {
    const int left = static_cast<int>(std::bit_floor(static_cast<unsigned>(n - 1)));
    T right[kBlock];
    tree<Op, T>(s, left, offset, out, count);
    tree<Op, T>(s + left, n - left, offset, right, count);
    leaf<Op, T, 2>(out, right, nullptr, nullptr, out, count);
  }
}

template <class Op>
void tree_of_halves(const void* const* s, int n, std::size_t offset, Widen widen_block, float* out,
                    std::size_t count) {
  if (n == 1) {
    widen_block(at<std::uint16_t>(s[0], offset), out, count);
    return;
  }
  const int left = static_cast<int>(std::bit_floor(static_cast<unsigned>(n - 1)));
  float right[kBlock];
  tree_of_halves<Op>(s, left, offset, widen_block, out, count);
  tree_of_halves<Op>(s + left, n - left, offset, widen_block, right, count);
  leaf<Op, float, 2>(out, right, nullptr, nullptr, out, count);
}

template <class T>
void divide(T* values, std::size_t count, double divisor) {
  const T by = static_cast<T>(divisor);
  NGD_INDEPENDENT
  for (std::size_t i = 0; i < count; ++i) values[i] = values[i] / by;
}

// One call of reduce_to_many, but for what the template parameters say.
struct Range {
  const void* const* sources;
  int n;
  void* const* destinations;
  int m;
  std::size_t count;
  double divisor;
};

void copy_to_others(const Range& range, const void* result, std::size_t offset, std::size_t bytes) {
  for (int j = 0; j < range.m; ++j) {
    char* to = static_cast<char*>(range.destinations[j]) + offset;
    if (to != result) std::memcpy(to, result, bytes);
  }
}

template <class Op, class T>
void run(const Range& range) {
  T scratch[kBlock];
  for (std::size_t offset = 0; offset < range.count; offset += kBlock) {
    const std::size_t count = range.count - offset < kBlock ? range.count - offset : kBlock;
    T* out = range.n <= 4 ? static_cast<T*>(range.destinations[0]) + offset : scratch;
    tree<Op, T>(range.sources, range.n, offset, out, count);
    if constexpr (std::is_floating_point_v<T>)
      if (range.divisor != 1.0) divide(out, count, range.divisor);
    copy_to_others(range, out, offset * sizeof(T), count * sizeof(T));
  }
}

template <class Op>
void run_halves(const Range& range, bool bf16) {
  float wide[kBlock];
  std::uint16_t result[kBlock];
  for (std::size_t offset = 0; offset < range.count; offset += kBlock) {
    const std::size_t count = range.count - offset < kBlock ? range.count - offset : kBlock;
    tree_of_halves<Op>(range.sources, range.n, offset, bf16 ? widen_bf16 : widen_f16, wide, count);
    if (range.divisor != 1.0) divide(wide, count, range.divisor);
    bf16 ? narrow_bf16(wide, result, count) : narrow_f16(wide, result, count);
    copy_to_others(range, result, offset * 2, count * 2);
  }
}

// Wrapping sums and products have the same bits whatever the sign: unsigned only.
template <class Op>
void run_arithmetic(DType dtype, const Range& range) {
  switch (size_of(dtype)) {
    case 1:
      return run<Op, std::uint8_t>(range);
    case 2:
      return run<Op, std::uint16_t>(range);
    case 4:
      return dtype == DType::F32 ? run<Op, float>(range) : run<Op, std::uint32_t>(range);
    default:
      return dtype == DType::F64 ? run<Op, double>(range) : run<Op, std::uint64_t>(range);
  }
}

template <class Op>
void run_ordered(DType dtype, const Range& range) {
  switch (dtype) {
    case DType::I8:
      return run<Op, std::int8_t>(range);
    case DType::I16:
      return run<Op, std::int16_t>(range);
    case DType::I32:
      return run<Op, std::int32_t>(range);
    case DType::I64:
      return run<Op, std::int64_t>(range);
    case DType::U16:
      return run<Op, std::uint16_t>(range);
    case DType::U32:
      return run<Op, std::uint32_t>(range);
    case DType::U64:
      return run<Op, std::uint64_t>(range);
    case DType::F32:
      return run<Op, float>(range);
    case DType::F64:
      return run<Op, double>(range);
    default:
      return run<Op, std::uint8_t>(range);  // U8, and Bool, whose bytes are 0 and 1
  }
}

template <class Op>
void run_any(DType dtype, const Range& range, void (*native)(DType, const Range&)) {
  if (is_half(dtype)) return run_halves<Op>(range, dtype == DType::BF16);
  native(dtype, range);
}

}  // namespace

void reduce_to_many(Combine combine, DType dtype, const void* const* sources, int n,
                    void* const* destinations, int m, std::size_t count, double divisor) {
  const Range range{sources, n, destinations, m, count, divisor};
  if (dtype == DType::Bool && combine == Combine::Prod) combine = Combine::Min;
  switch (combine) {
    case Combine::Sum:
      return run_any<Add>(dtype, range, run_arithmetic<Add>);
    case Combine::Prod:
      return run_any<Multiply>(dtype, range, run_arithmetic<Multiply>);
    case Combine::Min:
      return run_any<Least>(dtype, range, run_ordered<Least>);
    case Combine::Max:
      return run_any<Greatest>(dtype, range, run_ordered<Greatest>);
  }
}

void widen(DType half, const void* source, float* destination, std::size_t count) {
  (half == DType::BF16 ? widen_bf16 : widen_f16)(source, destination, count);
}

void narrow(DType half, const float* source, void* destination, std::size_t count) {
  (half == DType::BF16 ? narrow_bf16 : narrow_f16)(source, destination, count);
}

}  // namespace ngd::NGD_SIMD_LEVEL
