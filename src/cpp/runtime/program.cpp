// SPDX-License-Identifier: Apache-2.0
#include "runtime/program.hpp"

#include <array>
#include <charconv>
#include <locale>
#include <sstream>

#include "base/error.hpp"

namespace ngd::runtime {

namespace {

constexpr std::string_view kMemoryNames[] = {"input",   "output", "variable", "constant",
                                             "private", "shared", "nowhere"};

// Return the text of the memory and the position of a value, such as "private+64" or "input 0+8"
// (bytes after "+").
std::string position_of(const Value& value) {
  const std::string_view memory = kMemoryNames[static_cast<int>(value.memory)];
  if (value.memory == MemoryKind::Nowhere) return std::string(memory);
  if (value.memory == MemoryKind::Private || value.memory == MemoryKind::Shared)
    return concat(memory, '+', value.position);
  return value.offset > 0 ? concat(memory, ' ', value.position, '+', value.offset)
                          : concat(memory, ' ', value.position);
}

void print_one(std::ostream& out, std::int64_t integer) { out << integer; }
void print_one(std::ostream& out, double number) {
  std::array<char, 32> text;  // the shortest text that converts back to the same double
  out.write(text.data(), std::to_chars(text.begin(), text.end(), number).ptr - text.data());
}
void print_one(std::ostream& out, const std::string& text) { out << '"' << text << '"'; }

template <class T>
void print_one(std::ostream& out, const std::vector<T>& list) {
  out << '(';
  for (std::size_t i = 0; i < list.size(); ++i) {
    out << (i == 0 ? "" : ",");
    print_one(out, list[i]);
  }
  out << ')';
}

void print(std::ostream& out, const Attr& attr) {
  std::visit([&](const auto& value) { print_one(out, value); }, attr);
}

// Print the numbers of values, such as "%3, %5".
void print_operands(std::ostream& out, const std::vector<int>& operands) {
  for (std::size_t i = 0; i < operands.size(); ++i) out << (i > 0 ? ", %" : "%") << operands[i];
}

constexpr std::string_view kActionNames[] = {"", "start ", "wait ", "", ""};

bool runs_programs(const Instruction& instruction) {
  return instruction.action == Action::Scan || instruction.action == Action::Cond;
}

// Print a program and its nested programs. Each line begins with `indent`.
void print_program(std::ostream& out, const Program& program, const std::string& indent) {
  out << indent << "program(" << program.inputs << " inputs, " << program.outputs << " outputs, "
      << program.variables << " variables, private " << program.private_bytes << " bytes, shared "
      << program.shared_bytes << " bytes)\n";
  for (std::size_t i = 0; i < program.values.size(); ++i)
    out << indent << "  %" << i << " : " << ngd::to_string(program.values[i].type) << " @ "
        << position_of(program.values[i]) << '\n';
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    out << indent << "  " << i << ": ";
    print_operands(out, instruction.outputs);
    out << (instruction.outputs.empty() ? "" : " = ")
        << kActionNames[static_cast<int>(instruction.action)] << instruction.op;
    if (instruction.action == Action::Wait) {
      out << '(' << instruction.start << ')';
    } else {
      out << '(';
      print_operands(out, instruction.inputs);
      out << ')';
    }
    for (const auto& [name, attr] : instruction.attrs.all()) {
      out << ' ' << name << '=';
      print(out, attr);
    }
    if (instruction.group != 0) out << " group " << instruction.group;
    out << '\n';
    for (const Program& body : instruction.bodies) print_program(out, body, indent + "    ");
  }
}

// Return the exclusive upper limit of Value::position in this kind of memory: the number of the
// program's arrays of this kind (such as inputs or constants), or the size in bytes of an arena.
std::size_t extent_of(const Program& program, MemoryKind memory) {
  switch (memory) {
    case MemoryKind::Input:
      return program.inputs;
    case MemoryKind::Output:
      return program.outputs;
    case MemoryKind::Variable:
      return program.variables;
    case MemoryKind::Constant:
      return program.constants.size();
    case MemoryKind::Private:
      return program.private_bytes;
    case MemoryKind::Shared:
      return program.shared_bytes;
    case MemoryKind::Nowhere:
      break;
  }
  return 1;
}

// Throw Internal if a value is in an input, output, variable or constant that does not exist, or if
// some of its bytes are outside its arena or constant.
void verify_values(const Program& program) {
  for (const Value& value : program.values) {
    const bool is_in_arena =
        value.memory == MemoryKind::Private || value.memory == MemoryKind::Shared;
    const std::size_t end = is_in_arena ? value.position + value.type.bytes() : value.position + 1;
    check(end <= extent_of(program, value.memory) && (!is_in_arena || value.offset == 0) &&
              (value.memory != MemoryKind::Constant ||
               value.offset + value.type.bytes() <= program.constants[value.position].size()),
          "program: a value is outside its memory: ", position_of(value));
  }
}

// Throw Internal if an operand or result of instruction `i` is not a value of the program. Also
// throw if it has no memory, unless it is a result of a kernel, a Scan or a Cond.
void verify_operands(const Program& program, std::size_t i) {
  const Instruction& instruction = program.instructions[i];
  const int values = static_cast<int>(program.values.size());
  for (const auto* operands : {&instruction.inputs, &instruction.outputs})
    for (const int v : *operands) {
      check(v >= 0 && v < values, "program: instruction ", i,
            " has an operand that is not a value: ", v);
      check(program.values[v].memory != MemoryKind::Nowhere ||
                (operands == &instruction.outputs &&
                 (instruction.action == Action::Run || runs_programs(instruction))),
            "program: instruction ", i, " uses a value that has no memory: ", v);
    }
}

// Throw Internal if the program or one of its nested programs is not valid. `num_groups` is the
// number of groups of ranks of the outermost program. Nested programs use these groups, and have
// none of their own.
void verify(const Program& program, std::size_t num_groups) {
  verify_values(program);
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    verify_operands(program, i);
    for (const Program& body : instruction.bodies) {
      check(body.groups.empty() && body.variables == 0, "program: instruction ", i,
            " runs a program that has groups or variables of its own");
      verify(body, num_groups);
    }
    if (instruction.action == Action::Start)
      check(instruction.group >= 0 && static_cast<std::size_t>(instruction.group) < num_groups,
            "program: instruction ", i, " has a group that does not exist: ", instruction.group);
    if (instruction.action != Action::Wait) continue;
    check(instruction.start >= 0 && instruction.start < static_cast<int>(i) &&
              program.instructions[instruction.start].action == Action::Start,
          "program: instruction ", i, " does not wait for an earlier start");
  }
}

}  // namespace

std::string to_string(const Program& program) {
  std::ostringstream out;
  out.exceptions(std::ios::badbit);  // otherwise the text is truncated if memory is short
  out.imbue(std::locale::classic());
  print_program(out, program, "");
  return out.str();
}

void verify(const Program& program) { verify(program, program.groups.size()); }

}  // namespace ngd::runtime
