// SPDX-License-Identifier: Apache-2.0
// Programs for several tests. They use the kernels of remote_device.hpp.
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

// The body of a scan: carry, made = body(carry, slice) with made = carry + slice + ten, carry = made.
inline runtime::Program round_of_a_scan() {
  using runtime::MemoryKind;
  runtime::Program body;
  body.values = {{kVector, MemoryKind::Input, 0},   {kVector, MemoryKind::Input, 1},
                 {kVector, MemoryKind::Private, 0}, {kVector, MemoryKind::Constant, 0},
                 {kVector, MemoryKind::Output, 0},  {kVector, MemoryKind::Output, 1}};
  body.inputs = body.outputs = 2;
  body.private_bytes = 64;
  const float ten[] = {10, 20, 30};
  body.constants.emplace_back(reinterpret_cast<const char*>(ten),
                              reinterpret_cast<const char*>(ten) + sizeof ten);
  body.instructions = {run("add", {0, 1}, {2}), run("add", {2, 3}, {5}), run("copy", {5}, {4})};
  return body;
}

// last, made, history = scan(round_of_a_scan) over two slices. A result that is not read has the
// memory kind Nowhere.
inline runtime::Program scan_of_two(bool reverse, runtime::MemoryKind last,
                                    runtime::MemoryKind made, runtime::MemoryKind history) {
  using runtime::MemoryKind;
  const TensorType stack{DType::F32, {2, 3}}, spare{DType::U8, {64 + 3 * 64}};
  runtime::Program program;
  const auto result = [](const TensorType& type, MemoryKind memory, std::size_t number) {
    return runtime::Value{type, memory, memory == MemoryKind::Nowhere ? 0 : number};
  };
  program.values = {{kVector, MemoryKind::Input, 0},
                    {stack, MemoryKind::Input, 1},
                    result(kVector, last, 0),
                    result(stack, made, 1),
                    result(stack, history, 2),
                    {spare, MemoryKind::Private, 0},
                    {{DType::U8, {0}}, MemoryKind::Nowhere}};
  program.inputs = 2;
  program.outputs = 3;
  program.private_bytes = 64 + 3 * 64;
  runtime::Instruction scan{runtime::Action::Scan, "scan", {0, 1}, {2, 3, 4, 5, 6}, {}, -1, 0,
                            "model.py:3",          {}};
  for (const auto& [name, value] : {std::pair{"carries", 1}, {"slices", 1}, {"length", 2}})
    scan.attrs.set(name, std::int64_t{value});
  scan.attrs.set("reverse", std::int64_t{reverse});
  scan.bodies.push_back(round_of_a_scan());
  program.instructions = {scan};
  return program;
}

}  // namespace ngd::testing
