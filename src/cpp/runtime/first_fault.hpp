// SPDX-License-Identifier: Apache-2.0
// Which op of a fused kernel makes the first NaN or infinity: the kernel runs again, op by op.
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

// What a value of that type at a device pointer holds.
using Look = std::function<Faults(const TensorType&, const void*)>;

struct FirstFault {
  const Member* member;
  bool nan;  // else an infinity
};

// Whether an instruction computes a program of elementwise ops, which can be run op by op.
bool is_fused(const Instruction& instruction);

// Returns the first op whose result has a NaN or an infinity that its operands do not have; nothing
// where no elementwise op of the kernel has. `inputs` are the operands as they were before the
// kernel ran. Several statements of one `application` count as one op.
std::optional<FirstFault> first_fault(const Instruction& instruction,
                                      const kernels::KernelQuery& query,
                                      const std::vector<const void*>& inputs,
                                      device::Device& device, device::Queue& queue,
                                      kernels::KernelTable table, const Look& look);

// The op that reads operand `input` first, and the op that makes result `output`. Null where the
// instruction does not say.
const Member* reader_of(const Instruction& instruction, std::size_t input);
const Member* maker_of(const Instruction& instruction, std::size_t output);

}  // namespace ngd::runtime
