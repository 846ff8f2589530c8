// SPDX-License-Identifier: Apache-2.0
// Finds NaN and infinities in values. A fault is one of the two.
#pragma once

#include "base/attrs.hpp"
#include "base/shape.hpp"

namespace ngd::runtime {

// The kinds of faults that an array has.
struct Faults {
  bool nan = false, infinite = false;
};

// Return the kinds of faults that an array has. Integers have no faults.
Faults faults_of(const TensorType& type, const void* data) noexcept;

// Return the kinds of faults among the numbers in attributes, including the constants in kernel
// bodies, such as "#-inf".
Faults faults_of(const Attrs& attrs);

}  // namespace ngd::runtime
