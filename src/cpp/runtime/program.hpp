// SPDX-License-Identifier: Apache-2.0
// A compiled step as plain data: what Python's compiler hands over and the executor runs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/attrs.hpp"
#include "base/shape.hpp"

namespace ngd::runtime {

// Where a value lives. Input, Output, Variable and Constant are numbered; Private and Shared are
// arenas, in which values whose lives do not overlap share bytes. Shared is memory from which the
// ranks of a host reduce without staging. Nowhere: a result that nobody reads has no bytes; its
// kernel is given a null pointer.
enum class Lane : std::uint8_t { Input, Output, Variable, Constant, Private, Shared, Nowhere };

struct Value {
  TensorType type;
  Lane lane = Lane::Private;
  std::size_t place = 0;   // the number, or the byte offset in the arena
  std::size_t offset = 0;  // where in what has the number, in bytes; 0 in an arena
};

// Run: a kernel. Start: hand a collective to the communicator. Wait: have its result. Scan and Cond
// run programs (runtime/nested.hpp).
enum class Action : std::uint8_t { Run, Start, Wait, Scan, Cond };

struct Program;

// An op of the user's graph that an instruction computes, for NGD_CHECK_FINITE.
struct Member {
  std::string op, site;
  int application = -1;  // equal for what one op was expanded into; -1: the op was not expanded
};

struct Instruction {
  Action action = Action::Run;
  std::string op;           // a kernel's op, or a collective's kind
  std::vector<int> inputs;  // values; of a Wait: none
  std::vector<int> outputs;
  Attrs attrs;
  int start = -1;    // of a Wait: the instruction that it waits for
  int group = 0;     // of a Start: which of the program's groups it talks in
  std::string site;  // the user's "file:line"
  std::vector<Program> bodies;
  // Not part of the text form. Of a fused kernel: one per statement, then one per reduction.
  std::vector<Member> members = {};
};

// What the ranks of a group compare of their programs.
struct GroupSequence {
  std::string text;        // one line a collective, in order, with its call site; and which step
  std::uint64_t hash = 0;  // of the same lines without the call sites; 0 = no collective
  std::uint64_t computation = 0;  // of what the step computes (comm/computations.hpp)
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

// Throws Internal where an operand, a place or a Wait points outside the program.
void verify(const Program& program);

}  // namespace ngd::runtime
