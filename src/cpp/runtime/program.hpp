// SPDX-License-Identifier: Apache-2.0
// A program: a compiled step as plain data, from the compiler in Python to the executor.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/attrs.hpp"
#include "base/shape.hpp"

namespace ngd::runtime {

// The memory of a value. Inputs, outputs, variables and constants are numbered arrays. Private and
// Shared are arenas: values that are not alive at the same time share bytes. All ranks of a host
// can read the shared arena, so they reduce operands there without copying them first. Nowhere: no
// instruction reads the value, so it has no memory, and its kernel gets a null pointer.
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
  std::size_t position = 0;  // the number of the array, or the byte offset in the arena
  std::size_t offset = 0;    // the byte offset of the value in its array; 0 if it is in an arena
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
  std::string op;           // a kernel's op, or a collective's kind
  std::vector<int> inputs;  // numbers of values; a Wait has none
  std::vector<int> outputs;
  Attrs attrs;
  int start = -1;    // of a Wait: the number of its Start instruction
  int group = 0;     // of a Start: the number of its group in the program
  std::string site;  // the user's "file:line"
  std::vector<Program> bodies;
  // The ops that the instruction computes; not part of the text form (to_string). For a fused
  // kernel: first one op for each elementwise statement, and then one op for each reduction.
  std::vector<Member> members = {};
};

// The collectives of a program in one group. The ranks of the group compare the hash of each
// other's collectives. If the hashes differ, the error message shows the text.
struct GroupSequence {
  // one line per collective with its call site, in order; then the name of the step
  std::string text;
  std::uint64_t hash = 0;         // a hash of the collectives without call sites; 0: no collective
  std::uint64_t computation = 0;  // a hash of all that the step computes (comm/computations.hpp)
};

struct Program {
  std::vector<Value> values;
  std::vector<Instruction> instructions;
  std::vector<std::vector<char>> constants;
  std::size_t inputs = 0, outputs = 0, variables = 0;
  std::size_t private_bytes = 0, shared_bytes = 0;
  // one per group of ranks; the shared arena is allocated by the communicator of the first group
  std::vector<GroupSequence> groups;
};

// Return the text form of a program, which is stable, because golden tests compare it.
std::string to_string(const Program& program);

// Throw Internal if an instruction uses a value, a memory position or a Start that the program does
// not have.
void verify(const Program& program);

}  // namespace ngd::runtime
