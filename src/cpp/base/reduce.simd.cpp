// SPDX-License-Identifier: Apache-2.0
// The loops of base/reduce.hpp. The compiler vectorizes them.
//
// The arrays are divided into blocks that fit the first-level cache. For each block, the n sources
// are combined by the canonical tree, the balanced binary tree of base/reduce.hpp. A leaf of the
// tree combines at most four sources in registers. More sources are divided into a left subtree
// (the largest power of two below n) and a right subtree. Each subtree is reduced to a block of its
// own, and the two blocks are combined. 16-bit floats are widened to float32 block by block, and
// narrowed once at the end.
//
// A sum can overflow although its quotient does not. The division finds elements whose sum is
// infinite or NaN, at no extra cost. It does not write these elements, because the destination may
// be one of the sources. These elements are then summed again in float64. If the sources are
// float64 already, their elements are first scaled by a power of two. All other elements have the
// same bits as without this second pass.
#include "base/reduce.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/copy_past_caches.hpp"
#include "base/dtype.hpp"
#include "base/float16_loops.hpp"
#include "base/simd_loops.hpp"

namespace ngd::NGD_SIMD_LEVEL {

namespace {

// The number of elements per block. If n <= 4, n sources and a result fit a first-level cache of
// 48 KiB.
constexpr std::size_t kBlock = 1024;

struct Add {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(a + b);
  }
};

struct Multiply {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(T{1} * 1u * a * b);  // 1u: the product of two uint16_t can overflow int
  }
  static float apply(float a, float b) { return a * b; }
  static double apply(double a, double b) { return a * b; }
};

// If `a` is NaN, the test a != a is true and selects `a`. If `b` is NaN, every comparison with `b`
// is false, which selects `b`.
struct Least {
  template <class T>
  static T apply(T a, T b) {
    return ((a < b) | (a != a)) ? a : b;
  }
};

struct Greatest {
  template <class T>
  static T apply(T a, T b) {
    return ((a > b) | (a != a)) ? a : b;
  }
};

// Combine N arrays element by element: s0 + s1 for N = 2, (s0 + s1) + s2 for N = 3, and
// (s0 + s1) + (s2 + s3) for N = 4, where + stands for Op. Unused pointers are null.
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

// Return the address of an element of the array `source`. `offset` is the index of the element.
template <class T>
const T* elements_at(const void* source, std::size_t offset) {
  return static_cast<const T*>(source) + offset;
}

template <class Half>
void widen_block(const void* source, float* destination, std::size_t count) {
  widen_elements(static_cast<const Half*>(source), destination, static_cast<std::int64_t>(count));
}

template <class Half>
void narrow_block(const float* source, void* destination, std::size_t count) {
  narrow_elements(source, static_cast<Half*>(destination), static_cast<std::int64_t>(count));
}

using Widen = void (*)(const void*, float*, std::size_t);

// Reduce `count` elements (at most kBlock) at `offset` of `n` sources by the canonical tree (the
// balanced binary tree of base/reduce.hpp), and store them in `out`. If n > 4, `out` must not be
// one of the sources, because it gets the result of the left subtree before the right subtree is
// reduced.
template <class Op, class T>
void tree(const void* const* s, int n, std::size_t offset, T* out, std::size_t count) {
  if (n == 1) {
    std::memmove(out, elements_at<T>(s[0], offset), count * sizeof(T));
  } else if (n == 2) {
    leaf<Op, T, 2>(elements_at<T>(s[0], offset), elements_at<T>(s[1], offset), nullptr, nullptr,
                   out, count);
  } else if (n == 3) {
    leaf<Op, T, 3>(elements_at<T>(s[0], offset), elements_at<T>(s[1], offset),
                   elements_at<T>(s[2], offset), nullptr, out, count);
  } else if (n == 4) {
    leaf<Op, T, 4>(elements_at<T>(s[0], offset), elements_at<T>(s[1], offset),
                   elements_at<T>(s[2], offset), elements_at<T>(s[3], offset), out, count);
  } else {
    const int left = static_cast<int>(std::bit_floor(static_cast<unsigned>(n - 1)));
    T right[kBlock];
    tree<Op, T>(s, left, offset, out, count);
    tree<Op, T>(s + left, n - left, offset, right, count);
    leaf<Op, T, 2>(out, right, nullptr, nullptr, out, count);
  }
}

// Reduce 16-bit floats by the canonical tree, a balanced binary tree. `widen_block` converts the
// sources to float32, and the result in `out` is float32.
template <class Op>
void tree_of_halves(const void* const* s, int n, std::size_t offset, Widen widen_block, float* out,
                    std::size_t count) {
  if (n == 1) {
    widen_block(elements_at<std::uint16_t>(s[0], offset), out, count);
    return;
  }
  const int left = static_cast<int>(std::bit_floor(static_cast<unsigned>(n - 1)));
  float right[kBlock];
  tree_of_halves<Op>(s, left, offset, widen_block, out, count);
  tree_of_halves<Op>(s + left, n - left, offset, widen_block, right, count);
  leaf<Op, float, 2>(out, right, nullptr, nullptr, out, count);
}

template <class T>
using BitsOf = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;

template <class T>
bool is_finite(T value) {
  constexpr auto kInfinity = std::bit_cast<BitsOf<T>>(std::numeric_limits<T>::infinity());
  return (std::bit_cast<BitsOf<T>>(value) & kInfinity) != kInfinity;
}

// Store sums[i] / divisor in out[i] if sums[i] is finite, and fallback[i] otherwise. Return true if
// all sums are finite. The callers pass `out` as `fallback`, so out[i] keeps its value if the sum
// is not finite. In a reduction in place, this value is a term of the sum, and the caller then adds
// the terms again in float64. If the divisor is a power of two, the function multiplies by its
// reciprocal: the result is the same, and this is faster.
template <class T>
bool divide(const T* sums, const T* fallback, T* out, std::size_t count, double divisor) {
  const T typed_divisor = static_cast<T>(divisor);
  const T reciprocal = std::bit_cast<BitsOf<T>>(typed_divisor) << (sizeof(T) == 4 ? 9 : 12) == 0
                           ? T{1} / typed_divisor
                           : T{0};
  BitsOf<T> has_overflow = 0;
  const auto store_quotient = [&](std::size_t i, T quotient) {
    const bool has_finite_sum = is_finite(sums[i]);
    out[i] = has_finite_sum ? quotient : fallback[i];
    has_overflow |= static_cast<BitsOf<T>>(!has_finite_sum);
  };
  if (reciprocal != 0) {
    NGD_INDEPENDENT
    for (std::size_t i = 0; i < count; ++i) store_quotient(i, sums[i] * reciprocal);
  } else {
    NGD_INDEPENDENT
    for (std::size_t i = 0; i < count; ++i) store_quotient(i, sums[i] / typed_divisor);
  }
  return has_overflow == 0;
}

// Return term(first) + ... + term(first + n - 1) in float64, added in the order of the canonical
// tree (base/reduce.hpp): a balanced binary tree.
template <class Term>
double sum_of(const Term& term, int first, int n) {
  if (n == 1) return term(first);
  const int left = static_cast<int>(std::bit_floor(static_cast<unsigned>(n - 1)));
  return sum_of(term, first, left) + sum_of(term, first + left, n - left);
}

// Return sum / divisor for an element whose float sum overflows, or has an infinite or NaN term.
// The terms are summed again in float64. Terms that are float64 already are first scaled down by a
// power of two, so that their sum does not overflow.
template <class Term>
double quotient_of(const Term& term, int n, double divisor, bool is_float64) {
  const double scale = is_float64 ? 1.0 / std::bit_ceil(static_cast<unsigned>(n)) : 1.0;
  const auto scaled = [&](int i) { return term(i) * scale; };
  const double scaled_quotient = sum_of(scaled, 0, n) / divisor;
  const double quotient = scaled_quotient / scale;
  // The magnitude of a mean of finite doubles is at most that of the largest term, so the mean fits
  // in a double. If `quotient` is infinite although scaled_quotient = quotient * scale is finite,
  // the cause is rounding. Return the largest double, with the sign of the quotient.
  if (divisor >= n && is_finite(scaled_quotient) && !is_finite(quotient))
    return std::copysign(std::numeric_limits<double>::max(), quotient);
  return quotient;
}

// The arguments of a reduction of `n` sources to `m` destinations, each of `count` elements. Sums
// of floats are divided by `divisor` (1: not divided).
struct Range {
  const void* const* sources;
  int n;
  void* const* destinations;
  int m;
  std::size_t count;
  double divisor;
};

// Results of at least this many bytes, in all destinations together, are stored past the caches,
// with non-temporal stores. All-reduce of float32 in place, 2 ranks, AMD EPYC 9005 with 32 MiB of
// L3, medians of 3 runs: 16 MiB reach 22.2 GB/s with normal stores and 31.5 GB/s with non-temporal
// ones; 64 MiB reach 22.7 and 25.6 GB/s. With 4 MiB, the next reader of the result loses as much
// time as the stores gain.
constexpr std::size_t kMinBytesPastCaches = 16 << 20;

// Return true if the result may be stored past the caches: it is large enough, and each destination
// is aligned to a cache line (64 bytes).
bool can_bypass_caches(const Range& range, std::size_t element_bytes) {
  const std::size_t bytes = range.count * element_bytes * static_cast<std::size_t>(range.m);
  if (!kCanBypassCaches || bytes < kMinBytesPastCaches) return false;
  for (int j = 0; j < range.m; ++j)
    if (reinterpret_cast<std::uintptr_t>(range.destinations[j]) % 64 != 0) return false;
  return true;
}

// Store the result of a block in all destinations. `result` may be the memory of a destination:
// then no copy is needed for this destination.
void store(const Range& range, const void* result, std::size_t offset, std::size_t bytes,
           bool is_past_caches) {
  for (int j = 0; j < range.m; ++j) {
    std::byte* to = static_cast<std::byte*>(range.destinations[j]) + offset;
    if (to == result) continue;
    if (is_past_caches)
      copy_past_caches(to, static_cast<const std::byte*>(result), bytes);
    else
      std::memcpy(to, result, bytes);
  }
}

// Sum floats in the order of the canonical tree (base/reduce.hpp), and divide the sums by
// range.divisor.
template <class T>
void run_divided(const Range& range) {
  alignas(64) T sums[kBlock];
  const bool is_past_caches = can_bypass_caches(range, sizeof(T));
  for (std::size_t offset = 0; offset < range.count; offset += kBlock) {
    const std::size_t count = range.count - offset < kBlock ? range.count - offset : kBlock;
    T* out = is_past_caches ? sums : static_cast<T*>(range.destinations[0]) + offset;
    tree<Add, T>(range.sources, range.n, offset, sums, count);
    if (!divide(sums, out, out, count, range.divisor)) [[unlikely]]
      for (std::size_t i = 0; i < count; ++i) {
        const auto term = [&](int r) -> double {
          return elements_at<T>(range.sources[r], offset)[i];
        };
        if (!is_finite(sums[i]))
          out[i] = static_cast<T>(
              quotient_of(term, range.n, range.divisor, sizeof(T) == sizeof(double)));
      }
    store(range, out, offset * sizeof(T), count * sizeof(T), is_past_caches);
  }
  if (is_past_caches) finish_past_caches();
}

// Reduce a range of elements of type T, block by block. Float sums are divided by range.divisor.
template <class Op, class T>
void run(const Range& range) {
  if constexpr (std::is_floating_point_v<T> && std::is_same_v<Op, Add>)
    if (range.divisor != 1.0) return run_divided<T>(range);
  alignas(64) T scratch[kBlock];
  const bool is_past_caches = can_bypass_caches(range, sizeof(T));
  const bool is_direct = range.n <= 4 && !is_past_caches;
  for (std::size_t offset = 0; offset < range.count; offset += kBlock) {
    const std::size_t count = range.count - offset < kBlock ? range.count - offset : kBlock;
    T* out = is_direct ? static_cast<T*>(range.destinations[0]) + offset : scratch;
    tree<Op, T>(range.sources, range.n, offset, out, count);
    store(range, out, offset * sizeof(T), count * sizeof(T), is_past_caches);
  }
  if (is_past_caches) finish_past_caches();
}

// Reduce a range of bfloat16 elements if `is_bf16` is true, otherwise of float16 elements. They are
// accumulated in float32. Sums are divided by range.divisor. The result is rounded once.
template <class Op>
void run_halves(const Range& range, bool is_bf16) {
  alignas(64) float accumulators[kBlock];
  alignas(64) std::uint16_t result[kBlock];
  const bool is_past_caches = can_bypass_caches(range, sizeof(std::uint16_t));
  for (std::size_t offset = 0; offset < range.count; offset += kBlock) {
    const std::size_t count = range.count - offset < kBlock ? range.count - offset : kBlock;
    tree_of_halves<Op>(range.sources, range.n, offset,
                       is_bf16 ? widen_block<BFloat16> : widen_block<Float16>, accumulators, count);
    const bool is_divided = std::is_same_v<Op, Add> && range.divisor != 1.0;
    if (is_divided && !divide(accumulators, accumulators, accumulators, count, range.divisor))
        [[unlikely]]
      for (std::size_t i = 0; i < count; ++i) {
        const auto term = [&](int r) -> double {
          const auto* source = elements_at<std::uint16_t>(range.sources[r], offset) + i;
          float value = 0;
          is_bf16 ? widen_block<BFloat16>(source, &value, 1)
                  : widen_block<Float16>(source, &value, 1);
          return value;
        };
        if (!is_finite(accumulators[i]))
          accumulators[i] = static_cast<float>(quotient_of(term, range.n, range.divisor, false));
      }
    is_bf16 ? narrow_block<BFloat16>(accumulators, result, count)
            : narrow_block<Float16>(accumulators, result, count);
    store(range, result, offset * 2, count * 2, is_past_caches);
  }
  if (is_past_caches) finish_past_caches();
}

// Sums and products that wrap have the same bits for signed and unsigned integers. So signed
// integers are computed as unsigned ones.
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

// Compute a minimum or maximum of arrays. Signed and unsigned integers compare differently, so each
// integer dtype is computed as its own type.
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

// Reduce 16-bit floats with run_halves(). For all other dtypes, call the function `native`.
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
  (half == DType::BF16 ? widen_block<BFloat16> : widen_block<Float16>)(source, destination, count);
}

void narrow(DType half, const float* source, void* destination, std::size_t count) {
  (half == DType::BF16 ? narrow_block<BFloat16> : narrow_block<Float16>)(source, destination,
                                                                         count);
}

}  // namespace ngd::NGD_SIMD_LEVEL
