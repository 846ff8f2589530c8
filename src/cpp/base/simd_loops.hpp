// SPDX-License-Identifier: Apache-2.0
// Types and macros for the loops of *.simd.cpp files. Only those include this file.
#pragma once

#define NGD_INLINE [[gnu::always_inline]] static inline

// NGD_INDEPENDENT precedes a loop in which no iteration reads an element that another iteration
// writes. Pointers may be equal: a result may replace an operand. NGD_UNROLL precedes a loop of
// constant length.
#if defined(__clang__)
#define NGD_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#define NGD_UNROLL _Pragma("clang loop unroll(full)")
#pragma clang diagnostic ignored "-Wpass-failed"  // not every loop can become vectors
#else
#define NGD_INDEPENDENT _Pragma("GCC ivdep")
#define NGD_UNROLL _Pragma("GCC unroll 16")
#endif

// The size of a vector register, in bytes. Sums that must stay in registers are vectors of this
// size, because compilers keep larger vectors in memory. Compilers also keep an array of vectors in
// memory if the array is copied as a whole.
#if defined(__AVX512F__)
#define NGD_REGISTER_BYTES 64
#elif defined(__AVX2__)
#define NGD_REGISTER_BYTES 32
#else
#define NGD_REGISTER_BYTES 16
#endif

namespace ngd {

// VectorOf<T, bytes>::type is a SIMD vector of `bytes` bytes with elements of T. VectorOf<T,
// bytes>::stored is the type for loads and stores of such a vector: it needs only the alignment of
// one element.
template <class T, int bytes = 64>
struct VectorOf {
  typedef T type __attribute__((vector_size(bytes)));
  typedef T stored __attribute__((vector_size(bytes), aligned(alignof(T)), may_alias));
};

}  // namespace ngd
