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
// Shared are arenas: values that are not alive at the same time share bytes. The ranks of a host
// reduce from the shared arena without staging. Nowhere: no instruction reads the value, so it has
// no memory, and its kernel gets a null pointer.
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
  std::size_t offset = 0;    // the byte offset in the array; 0 in an arena
};

// Run computes a kernel. Start submits a collective, and Wait waits for it. Scan and Cond run
// nested programs (runtime/nested.hpp).
enum class Action : std::uint8_t { Run, Start, Wait, Scan, Cond };

struct Program;

// An op of the user's graph that an instruction computes, for NGD_CHECK_FINITE.
struct Member {
  std::string op, site;
  int application = -1;  // equal for all ops that one op was expanded into; -1: not expanded
};

struct Instruction {
  Action action = Action::Run;
  std::string op;           // a kernel's op, or a collective's kind
  std::vector<int> inputs;  // values; a Wait has none
  std::vector<int> outputs;
  Attrs attrs;
  int start = -1;    // of a Wait: the instruction that it waits for
  int group = 0;     // of a Start: the number of its group in the program
  std::string site;  // the user's "file:line"
  std::vector<Program> bodies;
  // Not part of the text form. Of a fused kernel: one per statement, then one per reduction.
  std::vector<Member> members = {};
};

// The collectives of a program in one group, which the ranks of the group compare.
struct GroupSequence {
  std::string text;        // one line per collective with its call site, in order; and the step
  std::uint64_t hash = 0;  // of the same lines without the call sites; 0 = no collective
  std::uint64_t computation = 0;  // a hash, see comm/computations.hpp
};

struct Program {
  std::vector<Value> values;
  std::vector<Instruction> instructions;
  std::vector<std::vector<char>> constants;
  std::size_t inputs = 0, outputs = 0, variables = 0;
  std::size_t private_bytes = 0, shared_bytes = 0;
  std::vector<GroupSequence> groups;  // the first one's memory is the shared arena
};

// The stable text form that golden tests compare.
std::string to_string(const Program& program);

// Throw Internal if an operand, a position or a Wait is outside of the program.
void verify(const Program& program);

}  // namespace ngd::runtime
