// SPDX-License-Identifier: Apache-2.0
// Nested programs: the bodies of a Scan and the branches of a Cond. One of them runs at a time.
// They use memory of the outer program: a private and a shared arena. After the private arena there
// is the memory that the Scan or Cond itself needs.
#pragma once

#include <memory>
#include <vector>

#include "kernels/kernel.hpp"
#include "runtime/program.hpp"

namespace ngd::runtime {

class Executor;
struct RunContext;

class Nested {
 public:
  virtual ~Nested() = default;
  virtual void run(const void* const* inputs, void* const* outputs) = 0;
  virtual std::vector<const Executor*> programs() const = 0;  // one per body of the instruction
};

// Build the nested programs of an instruction with the operands of `query`. The last two outputs of
// `query` are not values: their sizes are those of the private and the shared memory of the nested
// programs. `arenas` has the addresses of these two memories.
//
// Scan runs its body `length` times, from the last slice to the first if `reverse` is set.
//   inputs:  `carries` carried values; `slices` tensors (iteration t reads slice t of each); values
//            that all iterations read
//   outputs: the carried values after the last iteration; tensors of which iteration t writes slice
//            t; for each carried value its history, a tensor whose slice t is the value before
//            iteration t
// The body reads carried values, a slice of each tensor, and the other values. It writes carried
// values and slices.
//
// Cond runs one of its two branches. The first input is a bool: the number of the branch. The host
// waits for it. Each branch reads the other inputs and writes the outputs.
//
// A nested program waits for all collectives that it starts. If it has collectives, the compiler
// ensures that all ranks run the same number of iterations and the same branch.
std::unique_ptr<Nested> make_nested(const Instruction& instruction,
                                    const kernels::KernelQuery& query, const RunContext& context,
                                    void* const* arenas);

}  // namespace ngd::runtime
