// SPDX-License-Identifier: Apache-2.0
// Nested programs: the bodies of a Scan and the branches of a Cond. One of them runs at a time.
// They use two blocks of the outer program's memory: a shared block of the shared arena (memory for
// operands of collectives), and a private block of the private arena (memory that only this rank
// uses). The shared block is the shared arena of the nested programs. The private block begins with
// the private arena of the nested programs. The rest is memory for the Scan or Cond itself.
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
  // Run or enqueue all iterations of a Scan, or one branch of a Cond. The pointers are device
  // pointers. An output that no instruction reads is null.
  virtual void run(const void* const* inputs, void* const* outputs) = 0;
  // Return the executor of a Scan's body, or the executors of a Cond's branches.
  virtual std::vector<const Executor*> programs() const = 0;
};

// Build the nested programs of an instruction. `query` has the types of the instruction's operands
// and results. The last two results are not tensors: they are two blocks of memory for the nested
// programs, first the private block and then the shared block. `arenas` has the addresses of the
// two blocks.
//
// Scan runs its body `length` times, from the last slice to the first if `reverse` is set.
//   inputs:  `carries` carried values (each iteration passes them to the next one); `slices`
//            tensors (iteration t reads slice t of each); values that all iterations read
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
