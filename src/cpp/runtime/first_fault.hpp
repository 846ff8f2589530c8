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

// Returns the faults of a value of this type at a device pointer.
using Look = std::function<Faults(const TensorType&, const void*)>;

struct FirstFault {
  const Member* member;
  bool nan;  // otherwise it is an infinity
};

// Return true if the instruction computes a kernel body, which can run one op at a time.
bool is_fused(const Instruction& instruction);

// Return the first op whose result has a NaN or an infinity that its operands do not have, if there
// is one among the elementwise ops of the kernel. `inputs` are the operands before the kernel ran.
// Several statements of one `application` count as one op.
std::optional<FirstFault> first_fault(const Instruction& instruction,
                                      const kernels::KernelQuery& query,
                                      const std::vector<const void*>& inputs,
                                      device::Device& device, device::Queue& queue,
                                      kernels::KernelTable table, const Look& look);

// Return the op that reads operand `input` first, and the op that computes result `output`. Null if
// the instruction does not have its ops.
const Member* reader_of(const Instruction& instruction, std::size_t input);
const Member* maker_of(const Instruction& instruction, std::size_t output);

}  // namespace ngd::runtime
