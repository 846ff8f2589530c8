// SPDX-License-Identifier: Apache-2.0
// The register tile of the own matrix product, one a SIMD level and type.
#pragma once

#include <cstdint>

namespace ngd::kernels::portable {

// A panel of A holds `rows` of its rows, column after column; a panel of B holds `columns` of its
// columns, row after row; both are filled up with zeros.
template <class T>
struct GemmTile {
  std::int64_t rows, columns;
  // c[i * c_stride + j] (+)= sum over p < depth of a[p * rows + i] * b[p * columns + j], for the
  // first rows_used rows and columns_used columns.
  void (*multiply)(std::int64_t depth, const T* a, const T* b, T* c, std::int64_t c_stride,
                   std::int64_t rows_used, std::int64_t columns_used, bool add);
};

struct GemmTiles {
  GemmTile<float> f32;
  GemmTile<double> f64;
  GemmTile<std::uint32_t> u32;
  GemmTile<std::uint64_t> u64;
};

namespace baseline {
const GemmTiles& gemm_tiles();
}
namespace avx2 {
const GemmTiles& gemm_tiles();
}
namespace avx512 {
const GemmTiles& gemm_tiles();
}

}  // namespace ngd::kernels::portable
