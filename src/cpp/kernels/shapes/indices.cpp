// SPDX-License-Identifier: Apache-2.0
#include "kernels/shapes/indices.hpp"

#include <stdexcept>

namespace ngd::kernels {

void IndexCheck::refuse(std::int64_t index, std::int64_t element) const {
  std::string position;
  for (std::size_t axis = shape.size(); axis-- > 0; element /= shape[axis])
    position = std::to_string(element % shape[axis]) + (position.empty() ? "" : ", ") + position;
  if (!position.empty()) position = " at [" + position + "] of the indices";
  throw std::out_of_range(concat(caller, ": expected an index in [", lowest, ", ", length, ")",
                                 of_axis, "; got ", index, position));
}

}  // namespace ngd::kernels
