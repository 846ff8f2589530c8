// SPDX-License-Identifier: Apache-2.0
// Copies past the caches, with non-temporal stores.
//
// A normal store first reads the cache line of its target into the cache, and evicts other data. A
// non-temporal store writes to memory directly. This saves the read, and keeps the caches for other
// data. But the next reader of the copy reads it from memory, so non-temporal stores are faster
// only for copies that are larger than the caches. CPUs may reorder non-temporal stores, so
// finish_past_caches() must follow them before another thread or process is notified.
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

// The functions below are static, because *.simd.cpp files include this file and are compiled once
// per SIMD level. If the functions were not static, the linker would keep only one of the compiled
// copies. If that were the copy of a higher level, code of the baseline would call it, and crash on
// an older CPU.
#if defined(__SSE2__)
inline constexpr bool kCanBypassCaches = true;

// Copy one cache line. `to` is aligned to 64 bytes.
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

// Copy `bytes` bytes. Whole cache lines of `to` are written with non-temporal stores, the bytes
// before and after them with normal stores. Call finish_past_caches() before you
// notify other threads or ranks of the new data.
[[gnu::always_inline]] static inline void copy_past_caches(std::byte* to, const std::byte* from,
                                                           std::size_t bytes) {
  constexpr std::size_t kLine = 64;
  const std::size_t head = -reinterpret_cast<std::uintptr_t>(to) % kLine;
  std::size_t at = head < bytes ? head : bytes;
  std::memcpy(to, from, at);
  for (; at + kLine <= bytes; at += kLine) store_line_past_caches(to + at, from + at);
  std::memcpy(to + at, from + at, bytes - at);
}

// Make the copies visible before all later stores, such as the flag that announces the data.
[[gnu::always_inline]] static inline void finish_past_caches() { _mm_sfence(); }
#else
inline constexpr bool kCanBypassCaches = false;

// Without SSE2, copy_past_caches() is a normal copy.
[[gnu::always_inline]] static inline void copy_past_caches(std::byte* to, const std::byte* from,
                                                           std::size_t bytes) {
  std::memcpy(to, from, bytes);
}
[[gnu::always_inline]] static inline void finish_past_caches() {}
#endif

}  // namespace ngd
