// SPDX-License-Identifier: Apache-2.0
// See gemm.hpp. A tile's sums fill about half of the vector registers: enough independent chains
// for the latency of multiply-add, and room for the operands.
#include "kernels/portable/gemm.hpp"

#include "kernels/simd_loops.hpp"

namespace ngd::kernels::portable::NGD_SIMD_LEVEL {

namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64, kRows = 8, kVectors = 3;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32, kRows = 6, kVectors = 2;
#else
constexpr int kVectorBytes = 16, kRows = 4, kVectors = 2;
#endif

// Whole arrays are never copied: the sums would be kept in memory.
template <class T>
void multiply(std::int64_t depth, const T* a, const T* b, T* c, std::int64_t c_stride,
              std::int64_t rows_used, std::int64_t columns_used, bool add) {
  using Vector = typename VectorOf<T, kVectorBytes>::type;
  using Stored = typename VectorOf<T, kVectorBytes>::stored;
  constexpr int kLanes = kVectorBytes / sizeof(T), kColumns = kVectors * kLanes;
  Vector sums[kRows][kVectors];
  NGD_UNROLL
  for (int i = 0; i < kRows; ++i) {
    NGD_UNROLL
    for (int v = 0; v < kVectors; ++v) sums[i][v] = Vector{};
  }
  for (std::int64_t p = 0; p < depth; ++p, a += kRows, b += kColumns) {
    Vector row[kVectors];
    NGD_UNROLL
    for (int v = 0; v < kVectors; ++v) row[v] = *reinterpret_cast<const Stored*>(b + v * kLanes);
    NGD_UNROLL
    for (int i = 0; i < kRows; ++i) {
      const Vector factor = a[i] - Vector{};
      NGD_UNROLL
      for (int v = 0; v < kVectors; ++v) sums[i][v] += factor * row[v];
    }
  }
  T edge[kRows * kColumns];
  const bool whole = rows_used == kRows && columns_used == kColumns && !add;
  T* out = whole ? c : edge;
  const std::int64_t stride = whole ? c_stride : kColumns;
  NGD_UNROLL
  for (int i = 0; i < kRows; ++i) {
    NGD_UNROLL
    for (int v = 0; v < kVectors; ++v)
      *reinterpret_cast<Stored*>(out + i * stride + v * kLanes) = sums[i][v];
  }
  if (whole) return;
  for (std::int64_t i = 0; i < rows_used; ++i) {
    const T* from = edge + i * kColumns;
    T* to = c + i * c_stride;
    for (std::int64_t j = 0; j < columns_used; ++j) to[j] = add ? to[j] + from[j] : from[j];
  }
}

template <class T>
constexpr GemmTile<T> tile() {
  return {kRows, kVectors * kVectorBytes / static_cast<int>(sizeof(T)), &multiply<T>};
}

constexpr GemmTiles kTiles = {tile<float>(), tile<double>(), tile<std::uint32_t>(),
                              tile<std::uint64_t>()};

}  // namespace

const GemmTiles& gemm_tiles() { return kTiles; }

}  // namespace ngd::kernels::portable::NGD_SIMD_LEVEL
