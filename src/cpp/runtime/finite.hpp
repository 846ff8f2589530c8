// SPDX-License-Identifier: Apache-2.0
// Finds NaN and infinities in values. A fault is one of the two.
#pragma once

#include "base/attrs.hpp"
#include "base/shape.hpp"

namespace ngd::runtime {

// The kinds of faults that an array has: NaN, infinity, both or none.
struct Faults {
  bool nan = false, infinite = false;
};

// Return the kinds of faults (NaN, infinity) that an array has. An array of integers has none.
Faults faults_of(const TensorType& type, const void* data) noexcept;

// Return the kinds of faults (NaN, infinity) among the numbers in the attributes of an instruction.
// The constants in the texts of kernel bodies count too. They are written "#nan", "#inf" and
// "#-inf".
Faults faults_of(const Attrs& attrs);

}  // namespace ngd::runtime
