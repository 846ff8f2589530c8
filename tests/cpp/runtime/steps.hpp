// SPDX-License-Identifier: Apache-2.0
// Programs that several tests run, of the kernels in remote_device.hpp.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "runtime/program.hpp"

namespace ngd::testing {

inline const TensorType kVector{DType::F32, {3}};

inline runtime::Instruction run(const char* op, std::vector<int> inputs, std::vector<int> outputs) {
  return {runtime::Action::Run, op, std::move(inputs), std::move(outputs), {}, -1, 0,
          "model.py:7",         {}};
}

// output = all_reduce(input + variable) + constant; then variable <- output.
inline runtime::Program training_step() {
  using runtime::Action;
  using runtime::Instruction;
  using runtime::MemoryKind;
  runtime::Program program;
  program.values = {{kVector, MemoryKind::Input, 0},    {kVector, MemoryKind::Variable, 0},
                    {kVector, MemoryKind::Constant, 0}, {kVector, MemoryKind::Shared, 0},
                    {kVector, MemoryKind::Output, 0},   {kVector, MemoryKind::Private, 0}};
  program.inputs = program.outputs = program.variables = 1;
  program.private_bytes = program.shared_bytes = 64;
  const float ten[] = {10, 20, 30};
  program.constants.emplace_back(reinterpret_cast<const char*>(ten),
                                 reinterpret_cast<const char*>(ten) + sizeof ten);
  Instruction start{Action::Start, "all_reduce", {3}, {3}, {}, -1, 0, "model.py:9", {}};
  start.attrs.set("reduce_op", std::string("sum"));
  Instruction wait{Action::Wait, "all_reduce", {}, {3}, {}, 1, 0, "model.py:9", {}};
  program.instructions = {
      run("add", {0, 1}, {3}), start, wait, run("add", {3, 2}, {5}), run("copy", {5}, {4}),
      run("copy", {5}, {1})};
  program.groups = {{"all_reduce f32[3] at model.py:9", 77}};
  return program;
}

}  // namespace ngd::testing
