// SPDX-License-Identifier: Apache-2.0
#include "base/reduce.hpp"

#include "base/simd.hpp"

namespace ngd {

NGD_DECLARE_SIMD_LEVELS(void reduce_to_many(Combine, DType, const void* const*, int, void* const*,
                                            int, std::size_t, double));
NGD_DECLARE_SIMD_LEVELS(void widen(DType, const void*, float*, std::size_t));
NGD_DECLARE_SIMD_LEVELS(void narrow(DType, const float*, void*, std::size_t));

void reduce(Combine combine, DType dtype, const void* const* sources, int n, void* destination,
            std::size_t count, double divisor) {
  reduce_to_many(combine, dtype, sources, n, &destination, 1, count, divisor);
}

void reduce_to_many(Combine combine, DType dtype, const void* const* sources, int n,
                    void* const* destinations, int m, std::size_t count, double divisor) {
  static const auto function = NGD_SIMD_SELECT(simd_level(), reduce_to_many);
  function(combine, dtype, sources, n, destinations, m, count, divisor);
}

void widen(DType half, const void* source, float* destination, std::size_t count) {
  static const auto function = NGD_SIMD_SELECT(simd_level(), widen);
  function(half, source, destination, count);
}

void narrow(DType half, const float* source, void* destination, std::size_t count) {
  static const auto function = NGD_SIMD_SELECT(simd_level(), narrow);
  function(half, source, destination, count);
}

}  // namespace ngd
