// SPDX-License-Identifier: Apache-2.0
// Programs inside a program: a loop, and a choice. One at a time runs in the memory that they are
// lent: an arena for the programs, and behind it what the loop or the choice needs itself.
#pragma once

#include <memory>

#include "device/device.hpp"
#include "kernels/kernel.hpp"
#include "runtime/program.hpp"

namespace ngd::runtime {

class Nested {
 public:
  virtual ~Nested() = default;
  virtual void run(const void* const* inputs, void* const* outputs) = 0;
};

// Of an instruction whose operands `query` tells; the last of its outputs is `spare`, which is
// lent. All that it computes is enqueued in `queue`, in which it is.
//
// Scan repeats a program `length` times, from the last slice to the first where `reverse` is set.
//   inputs:  `carries` values that go from round to round, `slices` tensors of which round t reads
//            slice t, and values that all rounds read
//   outputs: the values after the last round, tensors whose slice t round t makes, and of each
//            carried value a tensor whose slice t is what round t was given
// The program takes carried values, slices and values; it makes carried values and slices.
//
// Cond runs one of its two programs: the number of which is its first input, a bool. Each is given
// the other inputs and makes the outputs. The host waits for that number.
std::unique_ptr<Nested> make_nested(const Instruction& instruction,
                                    const kernels::KernelQuery& query, device::Device& device,
                                    device::Queue& queue, kernels::KernelTable table, void* spare);

}  // namespace ngd::runtime
