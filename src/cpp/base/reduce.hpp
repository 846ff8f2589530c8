// SPDX-License-Identifier: Apache-2.0
// Reduction over ranks, element by element: the arithmetic of every collective.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.hpp"

namespace ngd {

enum class Combine : std::uint8_t { Sum, Min, Max, Prod };

// destination[i] = combine(sources[0][i], ..., sources[n - 1][i]), then divided by
// `divisor` (1 = not divided; sums of floats only). Where that sum is beyond the largest float, and
// the quotient is not, it is the quotient.
//
// The order is the canonical one: a balanced binary tree over the sources in their order,
// ((s0 + s1) + (s2 + s3)) + ...; for n that is no power of two the left subtree takes the largest
// power of two below n. Two-byte floats are accumulated in float32 and rounded once; the division
// happens before that rounding. Integers wrap. Min and max propagate NaN. bool: min is and, max is
// or, prod is and. `destination` may be one of the sources. The result does not depend on the SIMD
// level or on how a caller cuts the range into pieces.
void reduce(Combine combine, DType dtype, const void* const* sources, int n, void* destination,
            std::size_t count, double divisor = 1.0);

// As reduce(), but the result is stored to each of `m` destinations (any of which may be sources).
void reduce_to_many(Combine combine, DType dtype, const void* const* sources, int n,
                    void* const* destinations, int m, std::size_t count, double divisor = 1.0);

// float32 <-> two-byte floats, exact widening and one rounding.
void widen(DType half, const void* source, float* destination, std::size_t count);
void narrow(DType half, const float* source, void* destination, std::size_t count);

}  // namespace ngd
