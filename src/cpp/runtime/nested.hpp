// SPDX-License-Identifier: Apache-2.0
// Programs inside a program: a loop, and a choice. One at a time runs in the memory that they are
// lent: arenas for the programs, and behind the private one what the loop or the choice needs
// itself.
#pragma once

#include <memory>
#include <vector>

#include "kernels/kernel.hpp"
#include "runtime/program.hpp"

namespace ngd::runtime {

class Executor;
struct Surroundings;

class Nested {
 public:
  virtual ~Nested() = default;
  virtual void run(const void* const* inputs, void* const* outputs) = 0;
  virtual std::vector<const Executor*> programs() const = 0;  // in the instruction's order
};

// Of an instruction whose operands `query` tells. The last two of its outputs are no values: memory
// for private values and for shared ones, which `lent` points to.
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
//
// What a program starts it also waits for. So all ranks go around as often, and choose alike, where
// a program has collectives: the compiler sees to it.
std::unique_ptr<Nested> make_nested(const Instruction& instruction,
                                    const kernels::KernelQuery& query,
                                    const Surroundings& surroundings, void* const* lent);

}  // namespace ngd::runtime
