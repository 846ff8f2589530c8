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

namespace ngd::kernels {

// A vector of so many bytes, and the same in memory at any element's address.
template <class T, int bytes = 64>
struct VectorOf {
  typedef T type __attribute__((vector_size(bytes)));
  typedef T stored __attribute__((vector_size(bytes), aligned(alignof(T)), may_alias));
};

}  // namespace ngd::kernels
