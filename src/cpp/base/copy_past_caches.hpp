// SPDX-License-Identifier: Apache-2.0
// A copy whose stores bypass the caches: for data that is larger than them, which would only flush
// them. The lines of the target are not read before they are written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace ngd {

// Static functions, since *.simd.cpp files include this, too (base/simd.hpp).
#if defined(__SSE2__)
inline constexpr bool kCanBypassCaches = true;

[[gnu::always_inline]] static inline void store_line_past_caches(std::byte* to,
                                                                 const std::byte* from) {
#if defined(__AVX512F__)
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_loadu_si512(from));
#elif defined(__AVX2__)
  for (std::size_t i = 0; i < 64; i += 32)
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i),
                        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i)));
#else
  for (std::size_t i = 0; i < 64; i += 16)
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
#endif
}

[[gnu::always_inline]] static inline void copy_past_caches(std::byte* to, const std::byte* from,
                                                           std::size_t bytes) {
  constexpr std::size_t kLine = 64;
  const std::size_t head = -reinterpret_cast<std::uintptr_t>(to) % kLine;
  std::size_t at = head < bytes ? head : bytes;
  std::memcpy(to, from, at);
  for (; at + kLine <= bytes; at += kLine) store_line_past_caches(to + at, from + at);
  std::memcpy(to + at, from + at, bytes - at);
}

// Order the stores before a flag by which other threads or processes find that the data is ready.
[[gnu::always_inline]] static inline void finish_past_caches() { _mm_sfence(); }
#else
inline constexpr bool kCanBypassCaches = false;

[[gnu::always_inline]] static inline void copy_past_caches(std::byte* to, const std::byte* from,
                                                           std::size_t bytes) {
  std::memcpy(to, from, bytes);
}
[[gnu::always_inline]] static inline void finish_past_caches() {}
#endif

}  // namespace ngd
