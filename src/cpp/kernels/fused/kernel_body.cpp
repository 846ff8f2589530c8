// SPDX-License-Identifier: Apache-2.0
#include "kernels/fused/kernel_body.hpp"

#include <array>
#include <cstring>
#include <utility>

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

// Throw a Refusal. Its text is all parts, one after the other.
template <class... Parts>
[[noreturn]] void refuse(Parts&&... parts) {
  throw Refusal(concat(std::forward<Parts>(parts)...));
}

// Return a number whose first sizeof(T) bytes in memory are `value`, and whose other bytes are 0.
template <class T>
std::uint64_t bits_of(T value) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}

// Return the words between the separators as views into `text`. Empty words are left out.
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

// Return the dtype with this name. Throws Refusal for an unknown name.
DType parse_dtype(std::string_view name) {
  try {
    return dtype_named(name);
  } catch (const std::invalid_argument& error) {
    refuse(error.what());
  }
}

// Parse the first word of a statement, such as "multiply:f32" or "cast:f32>i64".
Statement parse_head(std::string_view head) {
  const std::size_t colon = head.find(':');
  const std::string_view name = head.substr(0, colon);
  Statement statement;
  std::size_t row = 0;
  while (row < std::size(kOpcodes) && kOpcodes[row].name != name) ++row;
  if (row == std::size(kOpcodes)) refuse("there is no elementwise opcode ", name);
  if (colon == std::string_view::npos) refuse(head, " lacks its dtype");
  statement.opcode = static_cast<Opcode>(row);
  const std::string_view dtypes = head.substr(colon + 1);
  const std::size_t arrow = dtypes.find('>');
  statement.dtype = parse_dtype(dtypes.substr(0, arrow));
  if ((arrow != std::string_view::npos) != (statement.opcode == Opcode::cast))
    refuse(head, ": only a cast has two dtypes");
  statement.result = arrow != std::string_view::npos         ? parse_dtype(dtypes.substr(arrow + 1))
                     : kOpcodes[row].result == Result::Truth ? DType::Bool
                                                             : statement.dtype;
  return statement;
}

// Parse an operand: "i2" is input 2, "t2" is the value of statement 2, and "#0.5" is an immediate.
// Throws Refusal if there is no such input or earlier statement, or if its dtype is not `dtype`.
Operand parse_operand(std::string_view word, DType dtype, const std::vector<TensorType>& inputs,
                      const std::vector<Statement>& earlier) {
  Operand operand{.text = word.substr(1), .dtype = dtype};
  if (word[0] == '#') {
    operand.kind = Operand::Kind::Immediate;
    return operand;
  }
  const auto number = parse_number<int>(word.substr(1));
  operand.kind = word[0] == 'i' ? Operand::Kind::Input : Operand::Kind::Result;
  const std::size_t limit = word[0] == 'i' ? inputs.size() : earlier.size();
  if ((word[0] != 'i' && word[0] != 't') || !number || *number < 0 ||
      static_cast<std::size_t>(*number) >= limit)
    refuse("operand ", word, " is not an input, an earlier result or an immediate");
  operand.index = *number;
  const auto index = static_cast<std::size_t>(operand.index);
  const DType actual = word[0] == 'i' ? inputs[index].dtype : earlier[index].result;
  if (actual != dtype)
    refuse("operand ", word, " is ", short_name_of(actual), " where ", short_name_of(dtype),
           " is expected");
  return operand;
}

}  // namespace

std::vector<Statement> parse_statements(std::string_view text,
                                        const std::vector<TensorType>& inputs) {
  std::vector<Statement> statements;
  for (const std::string_view line : split(text, ';')) {
    const std::vector<std::string_view> words = split(line, ' ');
    if (words.empty()) continue;
    Statement statement = parse_head(words[0]);
    const std::size_t expected = kOpcodes[static_cast<int>(statement.opcode)].operands;
    if (words.size() != expected + 1)
      refuse(words[0], " takes ", expected, " operands, not ", words.size() - 1);
    for (std::size_t i = 1; i < words.size(); ++i) {
      const bool is_condition = statement.opcode == Opcode::where && i == 1;
      statement.operands.push_back(parse_operand(
          words[i], is_condition ? DType::Bool : statement.dtype, inputs, statements));
    }
    statements.push_back(std::move(statement));
  }
  return statements;
}

std::uint64_t bits_of_immediate(const Operand& operand) {
  const DType dtype = operand.dtype;
  if (is_floating(dtype)) {
    if (const auto value = parse_number<double>(operand.text)) {
      const auto single = static_cast<float>(*value);
      return dtype == DType::F64   ? bits_of(*value)
             : dtype == DType::F32 ? bits_of(single)
             : dtype == DType::F16 ? bits_of(static_cast<float>(Float16(single)))
                                   : bits_of(static_cast<float>(BFloat16(single)));
    }
  } else if (dtype == DType::U64) {
    if (const auto value = parse_number<std::uint64_t>(operand.text)) return *value;
  } else if (const auto value = parse_number<std::int64_t>(operand.text)) {
    return dtype == DType::Bool ? *value != 0 : static_cast<std::uint64_t>(*value);
  }
  throw Refusal(concat("immediate #", operand.text, " is not of dtype ", short_name_of(dtype)));
}

namespace {

// Return the statement numbers that an attribute of the query lists, or an empty list if the query
// does not have the attribute. Throw Refusal if a number is not in [0, num_statements).
std::vector<std::int64_t> statements_in(const KernelQuery& query, const char* attribute,
                                        std::size_t num_statements) {
  if (!query.attrs.has(attribute)) return {};
  const std::vector<std::int64_t>& numbers = query.attrs.integers(attribute);
  for (const std::int64_t t : numbers)
    if (t < 0 || t >= static_cast<std::int64_t>(num_statements))
      throw Refusal(concat(attribute, " name ", t, ", which is not a statement"));
  return numbers;
}

}  // namespace

Body::Body(const KernelQuery& query)
    : statements(parse_statements(query.attrs.text("program"), query.inputs)),
      results(statements_in(query, "results", statements.size())),
      reduced(statements_in(query, "reduced", statements.size())) {
  if (query.outputs.empty() || results.size() + reduced.size() != query.outputs.size())
    throw Refusal(concat(results.size(), " results and ", reduced.size(),
                         " reduced statements for ", query.outputs.size(), " outputs"));
  shape = reduced.empty() ? query.outputs[0].shape : query.attrs.integers("shape");
  for (std::size_t k = 0; k < query.outputs.size(); ++k) {
    const std::int64_t t = k < results.size() ? results[k] : reduced[k - results.size()];
    if (query.outputs[k].dtype != statements[static_cast<std::size_t>(t)].result)
      throw Refusal(concat("output ", k, " differs from its statement in dtype"));
    if (k < results.size() && query.outputs[k].shape != shape)
      throw Refusal("the outputs have different shapes");
  }
}

}  // namespace ngd::kernels::fused
