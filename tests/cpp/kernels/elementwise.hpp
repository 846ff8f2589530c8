// SPDX-License-Identifier: Apache-2.0
// Functions that the tests of elementwise kernels share.
#pragma once

#include <string>
#include <vector>

#include "harness.hpp"

namespace ngd::kernels::test {

inline std::string name(DType dtype) { return std::string(short_name_of(dtype)); }

// Run a kernel body on dense inputs of one shape.
inline std::vector<Tensor> run_dense(const std::string& program, const std::vector<Tensor>& inputs,
                                     const std::vector<DType>& outputs, const Integers& results,
                                     const std::vector<InPlace>& in_place = {}) {
  const Shape& shape = inputs[0].type().shape;
  Integers strides;
  for (std::size_t i = 0; i < inputs.size(); ++i)
    for (const std::int64_t s : row_major_strides(shape)) strides.push_back(s);
  std::vector<TensorType> types;
  for (const DType dtype : outputs) types.push_back({dtype, shape});
  return run("elementwise", inputs, types,
             attrs_of({{"program", program}, {"results", results}, {"input_strides", strides}}), "",
             in_place);
}

}  // namespace ngd::kernels::test
