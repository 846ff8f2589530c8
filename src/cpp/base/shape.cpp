// SPDX-License-Identifier: Apache-2.0
#include "base/shape.hpp"

namespace ngd {

std::int64_t element_count(const Shape& shape) noexcept {
  std::int64_t count = 1;
  for (const std::int64_t n : shape) count *= n;
  return count;
}

Shape row_major_strides(const Shape& shape) {
  Shape strides(shape.size());
  std::int64_t stride = 1;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    strides[axis] = stride;
    stride *= shape[axis];
  }
  return strides;
}

std::string to_string(const TensorType& type) {
  std::string text{short_name_of(type.dtype)};
  text += '[';
  for (std::size_t axis = 0; axis < type.shape.size(); ++axis) {
    if (axis > 0) text += ',';
    text += std::to_string(type.shape[axis]);
  }
  return text + ']';
}

}  // namespace ngd
