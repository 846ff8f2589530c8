// SPDX-License-Identifier: Apache-2.0
// Checks values for NaN and infinities.
#pragma once

#include "base/attrs.hpp"
#include "base/shape.hpp"

namespace ngd::runtime {

struct Faults {
  bool nan = false, infinite = false;
};

// Integers have none.
Faults faults_of(const TensorType& type, const void* data) noexcept;

// Checks the numbers in attributes, and the immediates in kernel bodies ("#-inf").
Faults faults_of(const Attrs& attrs);

}  // namespace ngd::runtime
