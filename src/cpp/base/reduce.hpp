// SPDX-License-Identifier: Apache-2.0
// The reduction of one array per rank to one array, element by element. All collectives that reduce
// use it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.hpp"

namespace ngd {

enum class Combine : std::uint8_t { Sum, Min, Max, Prod };

// Store combine(sources[0][i], ..., sources[n - 1][i]) in destination[i], for i < count. A sum of
// floats is then divided by `divisor` (1 = not divided; for other reductions it is 1). If the sum
// overflows and the quotient does not, the result is the quotient.
//
// The sources are combined in the canonical order, a balanced binary tree over the sources in their
// order: ((s0 + s1) + (s2 + s3)) + ... If n is not a power of two, the left subtree has the largest
// power of two below n. Because of this order, the result does not depend on the SIMD level, or on
// how the caller divides the range.
//
// 16-bit floats are accumulated in float32 and rounded once, after the division. Integers wrap. Min
// and max propagate NaN. For bool, min is and, max is or, prod is and. `destination` may be one of
// the sources.
void reduce(Combine combine, DType dtype, const void* const* sources, int n, void* destination,
            std::size_t count, double divisor = 1.0);

// The same as reduce(), except that the result is stored in each of the `m` arrays `destinations`.
// A destination may be one of the sources.
void reduce_to_many(Combine combine, DType dtype, const void* const* sources, int n,
                    void* const* destinations, int m, std::size_t count, double divisor = 1.0);

// widen() converts 16-bit floats to float32, which is exact. narrow() converts float32 to 16-bit
// floats, with one rounding.
void widen(DType half, const void* source, float* destination, std::size_t count);
void narrow(DType half, const float* source, void* destination, std::size_t count);

}  // namespace ngd
