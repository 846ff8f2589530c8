// SPDX-License-Identifier: Apache-2.0
// Conversions between float32 and 16-bit floats, for *.simd.cpp files. `Half` is Float16 or
// BFloat16.
//
// F16C has instructions for float16. Unlike the portable code, they make signalling NaNs quiet.
// With F16C, all float16 elements are therefore converted by them, including the last few of an
// array: the result does not depend on an element's position.
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/dtype.hpp"
#include "base/simd_loops.hpp"

#if defined(__F16C__)
#include <immintrin.h>
#define NGD_HAVE_F16C 1
#else
#define NGD_HAVE_F16C 0
#endif

namespace ngd::NGD_SIMD_LEVEL {

template <class Half>
constexpr bool kUsesF16c = NGD_HAVE_F16C && std::is_same_v<Half, Float16>;

// Return the value of a 16-bit float, which float32 represents exactly.
template <class Half>
NGD_INLINE float widen_element(Half value) {
#if NGD_HAVE_F16C
  if constexpr (kUsesF16c<Half>) return _cvtsh_ss(value.bits);
#endif
  return static_cast<float>(value);
}

// Round a float32 to the nearest 16-bit float; ties go to the even one.
template <class Half>
NGD_INLINE Half narrow_element(float value) {
#if NGD_HAVE_F16C
  if constexpr (kUsesF16c<Half>) {
    Half narrow;
    narrow.bits = static_cast<std::uint16_t>(_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT));
    return narrow;
  }
#endif
  return Half(value);
}

#if NGD_HAVE_F16C
// Load 8 float16 elements as float32. `from` needs no alignment.
NGD_INLINE __m256 load_eight(const Float16* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
// Return 8 float32 elements, rounded to float16. `from` needs no alignment.
NGD_INLINE __m128i narrow_eight(const float* from) {
  return _mm256_cvtps_ph(_mm256_loadu_ps(from), _MM_FROUND_TO_NEAREST_INT);
}
#endif

template <class Half>
NGD_INLINE void widen_elements(const Half* in, float* out, std::int64_t count) {
  std::int64_t i = 0;
#if NGD_HAVE_F16C
  if constexpr (kUsesF16c<Half>)
    for (; i + 8 <= count; i += 8) _mm256_storeu_ps(out + i, load_eight(in + i));
#endif
  NGD_INDEPENDENT
  for (std::int64_t k = i; k < count; ++k) out[k] = widen_element(in[k]);
}

template <class Half>
NGD_INLINE void narrow_elements(const float* in, Half* out, std::int64_t count) {
  std::int64_t i = 0;
#if NGD_HAVE_F16C
  if constexpr (kUsesF16c<Half>)
    for (; i + 8 <= count; i += 8)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), narrow_eight(in + i));
#endif
  NGD_INDEPENDENT
  for (std::int64_t k = i; k < count; ++k) out[k] = narrow_element<Half>(in[k]);
}

// Round float32 elements to the nearest values of a 16-bit float, and store them as float32. `out`
// may be `in`.
template <class Half>
NGD_INLINE void round_elements(const float* in, float* out, std::int64_t count) {
  std::int64_t i = 0;
#if NGD_HAVE_F16C
  if constexpr (kUsesF16c<Half>)
    for (; i + 8 <= count; i += 8) _mm256_storeu_ps(out + i, _mm256_cvtph_ps(narrow_eight(in + i)));
#endif
  NGD_INDEPENDENT
  for (std::int64_t k = i; k < count; ++k) out[k] = widen_element(narrow_element<Half>(in[k]));
}

}  // namespace ngd::NGD_SIMD_LEVEL
