// SPDX-License-Identifier: Apache-2.0
// Scalar functions for the tile loops. The functions of float32 have no branches and no calls, so
// the compiler can vectorize them. Only *.simd.cpp files include this file, and all functions are
// in the namespace NGD_SIMD_LEVEL.
//
// For float32, exp and log follow Cephes (S. Moshier, expf.c and logf.c) with the argument
// reduction of W. Cody and W. Waite, "Software Manual for the Elementary Functions" (1980). Their
// error is at most 2 ulp, including results that are subnormal. The polynomials of the other
// functions were fitted for ngd, by weighted least squares that approach the minimax polynomial. In
// the tile loops, the operations and their order are the same on every SIMD level (multiplications
// and additions are not contracted to FMA), so the results are the same too. float64 uses libm.
// 16-bit floats are computed in float32 and rounded.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "base/simd_loops.hpp"

namespace ngd::kernels::tiles::NGD_SIMD_LEVEL {

// The type in which arithmetic on T is done. Integers use an unsigned type, which wraps.
template <class T>
using WrappingType =
    std::conditional_t<std::is_floating_point_v<T>, T,
                       std::conditional_t<(sizeof(T) > 4), std::uint64_t, std::uint32_t>>;

// as_float() returns the float with these bits, and as_bits() returns the bits of a float.
NGD_INLINE float as_float(std::int32_t bits) { return __builtin_bit_cast(float, bits); }
NGD_INLINE std::int32_t as_bits(float value) { return __builtin_bit_cast(std::int32_t, value); }

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

NGD_INLINE float square_root(float x) { return __builtin_sqrtf(x); }
NGD_INLINE double square_root(double x) { return __builtin_sqrt(x); }
NGD_INLINE float floor_of(float x) { return __builtin_floorf(x); }
NGD_INLINE double floor_of(double x) { return __builtin_floor(x); }
NGD_INLINE float ceil_of(float x) { return __builtin_ceilf(x); }
NGD_INLINE double ceil_of(double x) { return __builtin_ceil(x); }
NGD_INLINE float round_half_even(float x) { return __builtin_rintf(x); }
NGD_INLINE double round_half_even(double x) { return __builtin_rint(x); }
// Return the magnitude of x with the sign of `sign`, as copysign of C.
NGD_INLINE float with_sign_of(float x, float sign) { return __builtin_copysignf(x, sign); }
NGD_INLINE double with_sign_of(double x, double sign) { return __builtin_copysign(x, sign); }
// Return fmod of C: the remainder has the sign of a. floor_remainder() is the remainder of NumPy.
NGD_INLINE float c_remainder(float a, float b) { return __builtin_fmodf(a, b); }
NGD_INLINE double c_remainder(double a, double b) { return __builtin_fmod(a, b); }

// Return |a|. The lowest signed integer, such as -128, is returned unchanged: +128 does not fit.
template <class T>
NGD_INLINE T absolute(T a) {
  if constexpr (std::is_same_v<T, float>) {
    return __builtin_fabsf(a);
  } else if constexpr (std::is_same_v<T, double>) {
    return __builtin_fabs(a);
  } else if constexpr (std::is_signed_v<T>) {
    return a < 0 ? T(-WrappingType<T>(a)) : a;
  } else {
    return a;
  }
}

// Return 1, -1 or 0 if a is positive, negative or zero. The sign of NaN is NaN.
template <class T>
NGD_INLINE T sign(T a) {
  if constexpr (std::is_floating_point_v<T>) {
    return a > 0 ? T(1) : a < 0 ? T(-1) : a != a ? a : T(0);
  } else if constexpr (std::is_signed_v<T>) {
    return T((a > 0) - (a < 0));
  } else {
    return T(a != 0);
  }
}

// The argument reduction of exp and expm1: e^x = 2^n * e^r with |r| <= ln(2) / 2.
struct ExponentParts {
  float r;
  std::int32_t n;
};

// Return r and n for e^x = 2^n * e^r. The callers first clamp x to a range within [-104, 89].
NGD_INLINE ExponentParts split_exponent(float x) {
  // Round x * log2(e) to the nearest integer n. A float of about kShift = 1.5 * 2^23 has no bits
  // for a fraction, so the sum x * log2(e) + kShift is rounded to an integer. The bits of the sum
  // minus the bits of kShift are n.
  constexpr float kShift = 12582912.0f, kLog2E = 1.44269504088896341f;
  const float shifted = x * kLog2E + kShift;
  const float n = shifted - kShift;
  return {(x - n * 0.693359375f) - n * -2.12194440e-4f, as_bits(shifted) - as_bits(kShift)};
}

// Return (e^r - 1 - r) / r^2, for a float or a vector of floats.
template <class V>
NGD_INLINE V exponential_tail(V r) {
  V p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  return p * r + 5.0000001201e-1f;
}

// Return 2^n for n from -126 to 127, the exponents of normal floats.
NGD_INLINE float power_of_two(std::int32_t n) {
  return as_float(static_cast<std::int32_t>(static_cast<std::uint32_t>(n + 127) << 23));
}

// Return e^x.
NGD_INLINE float exponential(float x) {
  const float low = x < -104.0f ? -104.0f : x;
  const float clamped = low > 89.0f ? 89.0f : low;
  const auto [r, n] = split_exponent(clamped);
  const float fraction = (exponential_tail(r) * (r * r) + r) + 1.0f;
  // Multiply by two powers of two whose product is 2^n, because 2^n itself can be subnormal, or
  // exceed the largest float.
  const std::int32_t half = n >> 1;
  return fraction * power_of_two(half) * power_of_two(n - half);
}

// Return e^x - 1, as expm1 of C.
NGD_INLINE float exponential_minus_one(float x) {
  const float low = x < -40.0f ? -40.0f : x;
  const float clamped = low > 89.0f ? 89.0f : low;
  const auto [r, n] = split_exponent(clamped);
  const float fraction = exponential_tail(r) * (r * r) + r;
  // With x = n * log(2) + r and fraction = e^r - 1, the result e^x - 1 is 2^n * (fraction + 1) - 1.
  // Compute half of the result, 2^(n-1) * fraction + (2^(n-1) - 0.5), and double it. 2^n itself is
  // not computed, because n can be 128, and 2^128 exceeds the largest float.
  const float half_scale = power_of_two(n - 1);
  const float result = 2.0f * (half_scale * fraction + (half_scale - 0.5f));
  return x == 0.0f ? x : result;
}

// Return the natural logarithm: -infinity for 0, and NaN for negative numbers.
NGD_INLINE float logarithm(float x) {
  const bool subnormal = x < 1.17549435e-38f;
  const std::int32_t bits = as_bits(subnormal ? x * 8388608.0f : x);
  const float mantissa = as_float((bits & 0x007fffff) | 0x3f000000);  // in [1/2, 1)
  const bool low = mantissa < 0.707106781186547524f;
  const std::int32_t exponent = (bits >> 23) - 126 - (subnormal ? 23 : 0) - (low ? 1 : 0);
  const float n = static_cast<float>(exponent);
  const float m = (low ? mantissa + mantissa : mantissa) - 1.0f;
  const float square = m * m;
  float p = 7.0376836292e-2f;
  p = p * m - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  float tail = m * square * p;
  tail = tail + n * -2.12194440e-4f;
  tail = tail - 0.5f * square;
  float result = (m + tail) + n * 0.693359375f;
  result = x == kInfinity ? x : result;
  result = x == 0.0f ? -kInfinity : result;
  return x >= 0.0f ? result : kNan;
}

// log(1 + x) = log(u) + (x - (u - 1)) / u for the rounded u = 1 + x.
NGD_INLINE float logarithm_of_one_plus(float x) {
  const float u = 1.0f + x;
  const float correction = (x - (u - 1.0f)) / u;
  const float result = logarithm(u) + (u > 0.0f && u < kInfinity ? correction : 0.0f);
  return x == 0.0f ? x : result;
}

// tanh |x| = e / (e + 2) for e = expm1(2 |x|). For |x| >= 10, the result is 1.
NGD_INLINE float hyperbolic_tangent(float x) {
  const float magnitude = __builtin_fabsf(x);
  const float e = exponential_minus_one(2.0f * (magnitude > 10.0f ? 10.0f : magnitude));
  return with_sign_of(e / (e + 2.0f), x);
}

// P and Q are polynomials. For |x| < 1, erf(x) = x + x P(x^2). Otherwise, erf(x) has the sign of x
// and the magnitude 1 - e^Q(|x|), where Q(m) approximates log(erfc(m)) for m in [1, 4]. For
// |x| > 4, Q(4) is used.
NGD_INLINE float error_function(float x) {
  const float magnitude = __builtin_fabsf(x);
  const float square = x * x;
  float p = 7.889109100e-05f;
  p = p * square - 8.020838158e-04f;
  p = p * square + 5.189534989e-03f;
  p = p * square - 2.685444441e-02f;
  p = p * square + 1.128360017e-01f;
  p = p * square - 3.761262714e-01f;
  p = p * square + 1.283791662e-01f;
  const float m = magnitude > 4.0f ? 4.0f : magnitude;
  float q = -2.168701521e-05f;
  q = q * m + 4.413384426e-04f;
  q = q * m - 4.204572688e-03f;
  q = q * m + 2.520828750e-02f;
  q = q * m - 1.084186287e-01f;
  q = q * m - 6.332198427e-01f;
  q = q * m - 1.129578451e+00f;
  q = q * m + 1.880462583e-04f;
  const float large = with_sign_of(1.0f - exponential(q), x);
  return magnitude < 1.0f ? x + x * p : large;
}

// Sine and cosine of a float32 are computed in float64. The argument reduction is x = k * pi/2 + r
// with |r| <= pi/4. pi/2 is the sum of a head and a tail. The head has 33 bits, so that k * head is
// exact for |x| up to kTrigonometricLimit. For larger arguments, tiles.simd.cpp uses libm.
constexpr float kTrigonometricLimit = 1.0e6f;

// Return sin(x + quadrants_ahead * pi/2). This is cos(x) for quadrants_ahead = 1.
NGD_INLINE float sine_of_quadrant(float x, std::int64_t quadrants_ahead) {
  constexpr double kShift = 0x1.8p52, kTwoOverPi = 0.63661977236758134308;
  constexpr double kHalfPiHead = 1.57079632673412561417, kHalfPiTail = 6.07710050650619224932e-11;
  const double shifted = x * kTwoOverPi + kShift;
  const std::int64_t quadrant = __builtin_bit_cast(std::int64_t, shifted) + quadrants_ahead;
  const double k = shifted - kShift;
  const double r = (x - k * kHalfPiHead) - k * kHalfPiTail;
  const double square = r * r;
  double s = 2.724694581766697e-06;
  s = s * square - 0.00019840063761300344;
  s = s * square + 0.0083333318323128309;
  s = s * square - 0.16666666663747196;
  s = r + r * square * s;
  double c = 2.4545519400692916e-05;
  c = c * square - 0.0013888291925625799;
  c = c * square + 0.041666664603696793;
  c = (1.0 - 0.5 * square) + square * square * c;
  const double value = (quadrant & 1) != 0 ? c : s;
  return static_cast<float>((quadrant & 2) != 0 ? -value : value);
}

// Return sin(x) and cos(x) for |x| up to kTrigonometricLimit.
NGD_INLINE float sine(float x) { return sine_of_quadrant(x, 0); }
NGD_INLINE float cosine(float x) { return sine_of_quadrant(x, 1); }

// The functions of float64 are those of libm.
NGD_INLINE double exponential(double x) { return __builtin_exp(x); }
NGD_INLINE double exponential_minus_one(double x) { return __builtin_expm1(x); }
NGD_INLINE double logarithm(double x) { return __builtin_log(x); }
NGD_INLINE double logarithm_of_one_plus(double x) { return __builtin_log1p(x); }
NGD_INLINE double hyperbolic_tangent(double x) { return __builtin_tanh(x); }
NGD_INLINE double error_function(double x) { return __builtin_erf(x); }
NGD_INLINE double sine(double x) { return __builtin_sin(x); }
NGD_INLINE double cosine(double x) { return __builtin_cos(x); }

// NumPy's remainder: the result has the sign of the divisor. The remainder of an integer by zero
// is 0.
template <class T>
NGD_INLINE T floor_remainder(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    const T rest = c_remainder(a, b);
    if (rest == T(0)) return with_sign_of(T(0), b);
    return (rest < T(0)) != (b < T(0)) ? rest + b : rest;
  } else {
    if (b == T(0)) return T(0);
    if constexpr (std::is_signed_v<T>) {
      if (b == T(-1)) return T(0);
      const T rest = T(a % b);
      return rest != 0 && (rest < 0) != (b < 0) ? T(rest + b) : rest;
    } else {
      return T(a % b);
    }
  }
}

// NumPy's floor division of a by b. If b is 0, the result is 0 for integers, and a / b for floats:
// an infinity or NaN.
template <class T>
NGD_INLINE T floor_divide(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (b == T(0)) return a / b;
    const T rest = c_remainder(a, b);
    T quotient = (a - rest) / b;
    if (rest != T(0) && (rest < T(0)) != (b < T(0))) quotient -= T(1);
    if (quotient == T(0)) return with_sign_of(T(0), a / b);
    const T floored = floor_of(quotient);
    return quotient - floored > T(0.5) ? floored + T(1) : floored;
  } else {
    if (b == T(0)) return T(0);
    if constexpr (std::is_signed_v<T>) {
      if (b == T(-1)) return T(-WrappingType<T>(a));
      const T quotient = T(a / b);
      return a % b != 0 && (a < 0) != (b < 0) ? T(quotient - 1) : quotient;
    } else {
      return T(a / b);
    }
  }
}

// Powers of integers are computed by squaring, and wrap. If the exponent is negative, the result is
// 0, except for the bases 1 and -1.
template <class T>
NGD_INLINE T power(T base, T exponent) {
  if constexpr (std::is_same_v<T, float>) {
    return __builtin_powf(base, exponent);
  } else if constexpr (std::is_same_v<T, double>) {
    return __builtin_pow(base, exponent);
  } else {
    using U = WrappingType<T>;
    if constexpr (std::is_signed_v<T>) {
      if (exponent < 0)
        return base == T(1) ? T(1) : base == T(-1) ? ((exponent & 1) != 0 ? T(-1) : T(1)) : T(0);
    }
    U result = 1, square = U(base);
    for (U left = U(exponent); left != 0; left >>= 1) {
      if ((left & 1) != 0) result *= square;
      square *= square;
    }
    return T(result);
  }
}

// Convert a number. From float to integer, truncate towards zero and saturate outside of the range
// of To. NaN becomes 0.
template <class To, class From>
NGD_INLINE To convert(From value) {
  if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    constexpr int kBits = std::numeric_limits<To>::digits;
    constexpr From kAbove = From(std::uint64_t{1} << (kBits - 1)) * From(2);
    constexpr From kLowest = std::is_signed_v<To> ? -kAbove : From(0);
    const bool is_in_range = value > kLowest && value < kAbove;
    const To inner = static_cast<To>(is_in_range ? value : From(0));
    const To lower = value <= kLowest ? std::numeric_limits<To>::lowest() : inner;
    return value >= kAbove ? std::numeric_limits<To>::max() : lower;
  } else {
    return static_cast<To>(value);
  }
}

}  // namespace ngd::kernels::tiles::NGD_SIMD_LEVEL
