// SPDX-License-Identifier: Apache-2.0
// Finds the op of a fused kernel whose result has the first NaN or infinity. The kernel runs again,
// one op at a time.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "device/device.hpp"
#include "kernels/kernel.hpp"
#include "runtime/finite.hpp"
#include "runtime/program.hpp"

namespace ngd::runtime {

// A function that returns the faults (NaN, infinity) of an array of this type at a device pointer.
using Look = std::function<Faults(const TensorType&, const void*)>;

struct FirstFault {
  const Member* member;
  bool nan;  // true: a NaN, false: an infinity
};

// Return true if the instruction runs a fused kernel. Its computation is a list of statements, so
// first_fault() can run them again one at a time.
bool is_fused(const Instruction& instruction);

// Return the first elementwise op of the kernel whose result has a NaN or an infinity that its
// operands do not have; nothing if no such op is found. `inputs` are the operands before the kernel
// ran. If the compiler has expanded one op of the user into several statements, these have the same
// number Member::application >= 0, and count as one op.
std::optional<FirstFault> first_fault(const Instruction& instruction,
                                      const kernels::KernelQuery& query,
                                      const std::vector<const void*>& inputs,
                                      device::Device& device, device::Queue& queue,
                                      kernels::KernelTable table, const Look& look);

// An instruction computes one op of the user's graph, or several ops in order by a fused kernel.
// reader_of() returns the first op that reads operand `input`. maker_of() returns the op that
// computes result `output`. Both return null if the instruction does not list its ops.
const Member* reader_of(const Instruction& instruction, std::size_t input);
const Member* maker_of(const Instruction& instruction, std::size_t output);

}  // namespace ngd::runtime
