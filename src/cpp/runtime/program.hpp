// SPDX-License-Identifier: Apache-2.0
// A program: a compiled step as plain data, from the compiler in Python to the executor.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/attrs.hpp"
#include "base/shape.hpp"

namespace ngd::runtime {

// The memory of a value. Inputs, outputs, variables and constants are arrays, and Value::position
// is the number of the array in its kind. Private and Shared are arenas: values that are not alive
// at the same time share bytes. All ranks of a host can read the shared arena, so they reduce
// operands there without copying them first. Nowhere: no instruction reads the value, so it has no
// memory. The instruction that computes it gets a null pointer for this output.
enum class MemoryKind : std::uint8_t {
  Input,
  Output,
  Variable,
  Constant,
  Private,
  Shared,
  Nowhere
};

struct Value {
  TensorType type;
  MemoryKind memory = MemoryKind::Private;
  // the byte offset of the value if `memory` is an arena, else the number of the value's array
  std::size_t position = 0;
  std::size_t offset = 0;  // the byte offset of the value in its array; 0 if it is in an arena
};

// The kinds of instructions. Run computes a kernel. Start submits a collective, and Wait waits for
// it. Scan and Cond run nested programs (runtime/nested.hpp).
enum class Action : std::uint8_t { Run, Start, Wait, Scan, Cond };

struct Program;

// An op of the user's graph that an instruction computes. The errors of NGD_CHECK_FINITE name it.
struct Member {
  std::string op, site;
  // If the compiler has expanded one op of the user into several ops, these ops have the same
  // number, and no other op has it. All other ops have -1.
  int application = -1;
};

struct Instruction {
  Action action = Action::Run;
  std::string op;           // the op of a kernel, or the kind of a collective
  std::vector<int> inputs;  // indices in Program::values; empty for Action::Wait
  std::vector<int> outputs;
  Attrs attrs;
  int start = -1;  // for Action::Wait: the index of the Action::Start that it waits for
  // for Action::Start: the group of ranks, by its index in `groups` of the outermost program
  int group = 0;
  std::string site;  // the user's "file:line"
  std::vector<Program> bodies;
  // The ops that the instruction computes; not part of the text form (to_string). For a fused
  // kernel: first the op of each statement (line) of its body, then the op of each reduction.
  std::vector<Member> members = {};
};

// The collectives that a program runs in one group of ranks. The ranks compare their `hash`. If
// it differs between ranks, the error message shows `text`.
struct GroupSequence {
  // one line per collective with its call site, in order; then the name of the step
  std::string text;
  // a hash of the collectives, but not of their call sites; 0 without collectives
  std::uint64_t hash = 0;
  std::uint64_t computation = 0;  // a hash of all that the step computes (comm/computations.hpp)
};

struct Program {
  std::vector<Value> values;
  std::vector<Instruction> instructions;
  std::vector<std::vector<char>> constants;
  std::size_t inputs = 0, outputs = 0, variables = 0;
  std::size_t private_bytes = 0, shared_bytes = 0;
  // One per group of ranks; empty in a nested program. The first group's communicator allocates the
  // arena MemoryKind::Shared.
  std::vector<GroupSequence> groups;
};

// Return the text form of a program, which is stable, because golden tests compare it.
std::string to_string(const Program& program);

// Throw Internal if the program is inconsistent: for example, if an instruction uses a value that
// does not exist, or if an Action::Wait does not follow its Action::Start.
void verify(const Program& program);

}  // namespace ngd::runtime
