// SPDX-License-Identifier: Apache-2.0
// Finds NaN and infinities in values. A fault is one of the two.
#pragma once

#include "base/attrs.hpp"
#include "base/shape.hpp"

namespace ngd::runtime {

// The kinds of faults that a value has.
struct Faults {
  bool nan = false, infinite = false;
};

// Return the faults of an array. Integers have none.
Faults faults_of(const TensorType& type, const void* data) noexcept;

// Return the faults of the numbers in attributes, and of the immediates in kernel bodies ("#-inf").
Faults faults_of(const Attrs& attrs);

}  // namespace ngd::runtime
