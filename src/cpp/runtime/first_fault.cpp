// SPDX-License-Identifier: Apache-2.0
#include "runtime/first_fault.hpp"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>

#include "kernels/fused/kernel_body.hpp"

namespace ngd::runtime {

namespace {

using kernels::fused::Operand;
using kernels::fused::Statement;

Faults operator|(Faults a, Faults b) { return {a.nan || b.nan, a.infinite || b.infinite}; }

// Return the text of the first `count` statements of a kernel body, in which a statement ends with
// a semicolon.
std::string prefix_of(std::string_view program, std::size_t count) {
  std::size_t end = 0;
  for (std::size_t i = 0; i < count && end != std::string_view::npos; ++i)
    end = program.find(';', end == 0 ? 0 : end + 1);
  return std::string(program.substr(0, end));
}

// Return the query for a kernel that computes the statements 0 to `statement` of the kernel body,
// and stores only the result of the last of them. A query has the op, the types and the attributes
// by which a kernel is made.
kernels::KernelQuery query_of_statement(const kernels::KernelQuery& original, std::size_t statement,
                                        DType dtype) {
  const Attrs& attrs = original.attrs;
  kernels::KernelQuery query{"elementwise", original.inputs, {}, {}};
  query.outputs.push_back(
      {dtype, attrs.has("shape") ? attrs.integers("shape") : original.outputs.at(0).shape});
  query.attrs.set("program", prefix_of(attrs.text("program"), statement + 1));
  query.attrs.set("results", std::vector<std::int64_t>{static_cast<std::int64_t>(statement)});
  query.attrs.set("input_strides", attrs.integers("input_strides"));
  return query;
}

// Return the faults of a constant in a statement: a NaN for "#nan", an infinity for "#-inf".
Faults immediate_faults(std::string_view text) {
  return {text.find("nan") != std::string_view::npos, text.find("inf") != std::string_view::npos};
}

// Return true if the compiler has expanded one op of the user into several ops, and `a` and `b` are
// two of them. An op that was not expanded has application -1; for it, return false.
bool are_of_one_op(const Member& a, const Member& b) {
  return a.application >= 0 && a.application == b.application;
}

// Return the faults (NaN, infinity) that any operand of an op has. An op may consist of several
// statements; `last` is the number of its last statement. Values that its own statements compute
// are not operands. `input_faults` has the faults of each input of the kernel, and `result_faults`
// has the faults of the result of each statement.
Faults operand_faults(std::size_t last, const std::vector<Member>& members,
                      const std::vector<Statement>& program,
                      const std::vector<Faults>& input_faults,
                      const std::vector<Faults>& result_faults) {
  Faults faults;
  for (std::size_t i = 0; i <= last; ++i) {
    if (i != last && !are_of_one_op(members[i], members[last])) continue;
    for (const Operand& operand : program[i].operands) {
      const auto index = static_cast<std::size_t>(operand.index);
      if (operand.kind == Operand::Kind::Immediate)
        faults = faults | immediate_faults(operand.text);
      else if (operand.kind == Operand::Kind::Input)
        faults = faults | input_faults[index];
      else if (!are_of_one_op(members[index], members[last]))
        faults = faults | result_faults[index];
    }
  }
  return faults;
}

}  // namespace

bool is_fused(const Instruction& instruction) {
  return instruction.action == Action::Run &&
         (instruction.op == "elementwise" || instruction.op == "elementwise_reduce");
}

std::optional<FirstFault> first_fault(const Instruction& instruction,
                                      const kernels::KernelQuery& query,
                                      const std::vector<const void*>& inputs,
                                      device::Device& device, device::Queue& queue,
                                      kernels::KernelTable table, const Look& look) {
  const std::vector<Member>& members = instruction.members;
  const std::string& text = query.attrs.text("program");
  const std::vector<Statement> program = kernels::fused::parse_statements(text, query.inputs);
  if (members.size() < program.size()) return std::nullopt;
  std::vector<Faults> input_faults, result_faults;
  for (std::size_t i = 0; i < inputs.size(); ++i)
    input_faults.push_back(look(query.inputs[i], inputs[i]));
  for (std::size_t i = 0; i < program.size(); ++i) {
    const kernels::KernelQuery one = query_of_statement(query, i, program[i].result);
    const std::unique_ptr<kernels::Kernel> kernel =
        kernels::find(table, one, kernels::this_machine()).offer.kernel;
    if (kernel == nullptr) return std::nullopt;
    kernel->prepare();
    const device::Buffer scratch(device, kernel->scratch_bytes());
    const device::Buffer result(device, one.outputs[0].bytes());
    void* const outputs[] = {result.data()};
    kernel->run({inputs.data(), outputs, scratch.data(), &queue});
    result_faults.push_back(look(one.outputs[0], result.data()));
  }
  for (std::size_t i = 0; i < program.size(); ++i) {
    const auto is_of_this_op = [&](const Member& later) {
      return are_of_one_op(later, members[i]);
    };
    const auto begin = members.begin() + static_cast<std::ptrdiff_t>(i) + 1;
    const auto end = members.begin() + static_cast<std::ptrdiff_t>(program.size());
    if (std::any_of(begin, end, is_of_this_op)) continue;
    const Faults before = operand_faults(i, members, program, input_faults, result_faults);
    if (result_faults[i].nan && !before.nan) return FirstFault{&members[i], true};
    if (result_faults[i].infinite && !before.nan && !before.infinite)
      return FirstFault{&members[i], false};
  }
  return std::nullopt;
}

const Member* reader_of(const Instruction& instruction, std::size_t input) {
  if (instruction.members.empty()) return nullptr;
  if (!is_fused(instruction)) return &instruction.members[0];
  const std::string text = instruction.attrs.text("program") + ";";
  const std::string operand = concat(" i", input);
  std::size_t statement = 0, begin = 0;
  for (std::size_t end = text.find(';'); end != std::string::npos; end = text.find(';', begin)) {
    const std::string line = text.substr(begin, end - begin) + " ";
    if (line.find(operand + " ") != std::string::npos)
      return statement < instruction.members.size() ? &instruction.members[statement] : nullptr;
    begin = end + 1;
    ++statement;
  }
  return &instruction.members[0];
}

const Member* maker_of(const Instruction& instruction, std::size_t output) {
  const std::vector<Member>& members = instruction.members;
  if (members.empty()) return nullptr;
  if (!is_fused(instruction)) return &members[0];
  const std::vector<std::int64_t>& results = instruction.attrs.integers("results");
  std::size_t number = members.size();
  if (output < results.size())
    number = static_cast<std::size_t>(results[output]);
  else if (instruction.attrs.has("reduced"))  // the last ops are the reductions, one per output
    number -= instruction.attrs.integers("reduced").size() - (output - results.size());
  return number < members.size() ? &members[number] : &members.back();
}

}  // namespace ngd::runtime
