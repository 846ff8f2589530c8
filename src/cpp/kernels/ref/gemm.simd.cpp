// SPDX-License-Identifier: Apache-2.0
// See gemm.hpp. A tile's sums fill about half of the vector registers: enough independent chains
// for the latency of multiply-add, and room for the operands.
#include "kernels/ref/gemm.hpp"

namespace ngd::kernels::ref::NGD_SIMD_LEVEL {

namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64, kRows = 8, kVectors = 3;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32, kRows = 6, kVectors = 2;
#else
constexpr int kVectorBytes = 16, kRows = 4, kVectors = 2;
#endif

template <class T>
struct VectorOf {
  typedef T type __attribute__((vector_size(kVectorBytes)));
};

template <class T>
void multiply(std::int64_t depth, const T* a, const T* b, T* c, std::int64_t c_stride,
              std::int64_t rows_used, std::int64_t columns_used, bool add) {
  using Vector = typename VectorOf<T>::type;
  constexpr int kLanes = kVectorBytes / sizeof(T), kColumns = kVectors * kLanes;
  Vector sums[kRows][kVectors] = {};
  for (std::int64_t p = 0; p < depth; ++p, a += kRows, b += kColumns) {
    Vector row[kVectors];
    __builtin_memcpy(row, b, sizeof(row));
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const Vector factor = a[i] - Vector{};
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sums[i][v] += factor * row[v];
    }
  }
  if (rows_used == kRows && columns_used == kColumns && !add) {
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) __builtin_memcpy(c + i * c_stride, sums[i], sizeof(sums[i]));
    return;
  }
  T out[kRows][kColumns];
  __builtin_memcpy(out, sums, sizeof(out));
  for (std::int64_t i = 0; i < rows_used; ++i)
    for (std::int64_t j = 0; j < columns_used; ++j)
      c[i * c_stride + j] = add ? c[i * c_stride + j] + out[i][j] : out[i][j];
}

template <class T>
constexpr GemmTile<T> tile() {
  return {kRows, kVectors * kVectorBytes / static_cast<int>(sizeof(T)), &multiply<T>};
}

constexpr GemmTiles kTiles = {tile<float>(), tile<double>(), tile<std::uint32_t>(),
                              tile<std::uint64_t>()};

}  // namespace

const GemmTiles& gemm_tiles() { return kTiles; }

}  // namespace ngd::kernels::ref::NGD_SIMD_LEVEL
