// SPDX-License-Identifier: Apache-2.0
#include "kernels/fused/elementwise_program.hpp"

#include <array>

#include "base/error.hpp"
#include "base/number.hpp"

namespace ngd::kernels::fused {

namespace {

enum class Result { Same, Truth };

struct OpcodeRow {
  std::string_view name;
  std::size_t operands;
  Result result;
};

constexpr OpcodeRow kOpcodes[] = {
#define NGD_OP(name, operands, domain, result, expression) {#name, operands, Result::result},
#include "kernels/tiles/opcodes.inc"
#undef NGD_OP
    {"cast", 1, Result::Same},
};

template <class... Parts>
[[noreturn]] void refuse(Parts&&... parts) {
  throw Refusal(concat(std::forward<Parts>(parts)...));
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> words;
  while (!text.empty()) {
    const std::size_t end = text.find(separator);
    const std::string_view word = text.substr(0, end);
    if (!word.empty()) words.push_back(word);
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  return words;
}

DType parse_dtype(std::string_view name) {
  try {
    return dtype_named(name);
  } catch (const std::invalid_argument& error) {
    refuse(error.what());
  }
}

// "multiply:f32" or "cast:f32>i64".
Instruction parse_head(std::string_view head) {
  const std::size_t colon = head.find(':');
  const std::string_view name = head.substr(0, colon);
  Instruction instruction;
  std::size_t row = 0;
  while (row < std::size(kOpcodes) && kOpcodes[row].name != name) ++row;
  if (row == std::size(kOpcodes)) refuse("no elementwise opcode is called ", name);
  if (colon == std::string_view::npos) refuse(head, " lacks its dtype");
  instruction.opcode = static_cast<Opcode>(row);
  const std::string_view dtypes = head.substr(colon + 1);
  const std::size_t arrow = dtypes.find('>');
  instruction.dtype = parse_dtype(dtypes.substr(0, arrow));
  if ((arrow != std::string_view::npos) != (instruction.opcode == Opcode::cast))
    refuse(head, ": a cast, and nothing else, has two dtypes");
  instruction.result = arrow != std::string_view::npos ? parse_dtype(dtypes.substr(arrow + 1))
                       : kOpcodes[row].result == Result::Truth ? DType::Bool
                                                               : instruction.dtype;
  return instruction;
}

Operand parse_operand(std::string_view word, DType dtype, const std::vector<TensorType>& inputs,
                      const std::vector<Instruction>& before) {
  Operand operand{.text = word.substr(1), .dtype = dtype};
  if (word[0] == '#') {
    operand.kind = Operand::Kind::Immediate;
    return operand;
  }
  const auto number = parse_number<int>(word.substr(1));
  operand.kind = word[0] == 'i' ? Operand::Kind::Input : Operand::Kind::Result;
  const std::size_t limit = word[0] == 'i' ? inputs.size() : before.size();
  if ((word[0] != 'i' && word[0] != 't') || !number || *number < 0 ||
      static_cast<std::size_t>(*number) >= limit)
    refuse("operand ", word, " is neither an input, an earlier result nor an immediate");
  operand.index = *number;
  const auto index = static_cast<std::size_t>(operand.index);
  const DType actual = word[0] == 'i' ? inputs[index].dtype : before[index].result;
  if (actual != dtype)
    refuse("operand ", word, " is ", short_name_of(actual), " where ", short_name_of(dtype),
           " is expected");
  return operand;
}

}  // namespace

std::vector<Instruction> parse_program(std::string_view text,
                                       const std::vector<TensorType>& inputs) {
  std::vector<Instruction> program;
  for (const std::string_view line : split(text, ';')) {
    const std::vector<std::string_view> words = split(line, ' ');
    if (words.empty()) continue;
    Instruction instruction = parse_head(words[0]);
    const std::size_t expected = kOpcodes[static_cast<int>(instruction.opcode)].operands;
    if (words.size() != expected + 1)
      refuse(words[0], " takes ", expected, " operands, not ", words.size() - 1);
    for (std::size_t i = 1; i < words.size(); ++i) {
      const bool condition = instruction.opcode == Opcode::where && i == 1;
      instruction.operands.push_back(
          parse_operand(words[i], condition ? DType::Bool : instruction.dtype, inputs, program));
    }
    program.push_back(std::move(instruction));
  }
  return program;
}

}  // namespace ngd::kernels::fused
