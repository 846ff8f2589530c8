// SPDX-License-Identifier: Apache-2.0
// Shapes, and types of tensors (dtype and shape).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.hpp"

namespace ngd {

using Shape = std::vector<std::int64_t>;

// Return the product of the extents: 1 for the empty shape.
std::int64_t element_count(const Shape& shape) noexcept;
Shape row_major_strides(const Shape& shape);  // in elements; the last axis has stride 1

struct TensorType {
  DType dtype = DType::F32;
  Shape shape;
  std::int64_t count() const noexcept { return element_count(shape); }
  std::size_t bytes() const noexcept { return static_cast<std::size_t>(count()) * size_of(dtype); }
  bool operator==(const TensorType&) const = default;
};

std::string to_string(const TensorType& type);  // "f32[2,3]"

}  // namespace ngd
