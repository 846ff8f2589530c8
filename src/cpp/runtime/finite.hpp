// SPDX-License-Identifier: Apache-2.0
// What of some values is no finite number.
#pragma once

#include "base/attrs.hpp"
#include "base/shape.hpp"

namespace ngd::runtime {

struct Faults {
  bool nan = false, infinite = false;
};

// Integers have none.
Faults faults_of(const TensorType& type, const void* data) noexcept;

// Of what stands in the program: numbers, and immediates in texts ("#-inf").
Faults faults_of(const Attrs& attrs);

}  // namespace ngd::runtime
