// SPDX-License-Identifier: Apache-2.0
// What the loops of *.simd.cpp are written with. Types and macros only: functions lie in
// NGD_SIMD_LEVEL.
#pragma once

#define NGD_INLINE [[gnu::always_inline]] static inline

// Before a loop of which no iteration reads what another one writes, though pointers may be equal.
#if defined(__clang__)
#define NGD_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#define NGD_UNROLL _Pragma("clang loop unroll(full)")
#pragma clang diagnostic ignored "-Wpass-failed"  // not every loop can become vectors
#else
#define NGD_INDEPENDENT _Pragma("GCC ivdep")
#define NGD_UNROLL _Pragma("GCC unroll 16")
#endif

// The bytes of a vector register. Sums that are to stay in registers are vectors of so many:
// larger ones, and arrays of vectors that are copied whole, are kept in memory.
#if defined(__AVX512F__)
#define NGD_REGISTER_BYTES 64
#elif defined(__AVX2__)
#define NGD_REGISTER_BYTES 32
#else
#define NGD_REGISTER_BYTES 16
#endif

namespace ngd::kernels {

// A vector of so many bytes, and the same in memory at any element's address.
template <class T, int bytes = 64>
struct VectorOf {
  typedef T type __attribute__((vector_size(bytes)));
  typedef T stored __attribute__((vector_size(bytes), aligned(alignof(T)), may_alias));
};

}  // namespace ngd::kernels
