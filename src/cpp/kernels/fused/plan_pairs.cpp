// SPDX-License-Identifier: Apache-2.0
#include <optional>

#include "kernels/fused/plan_parts.hpp"

namespace ngd::kernels::fused {

using tiles::First;
using tiles::Second;
using tiles::tile_table;

namespace {

// Return the operation of the first statement of a pair (two statements in one loop), or nullopt if
// a statement with this opcode cannot be the first.
std::optional<First> first_of_pair(Opcode opcode) {
  if (opcode == Opcode::add) return First::Add;
  if (opcode == Opcode::subtract) return First::Subtract;
  if (opcode == Opcode::multiply) return First::Multiply;
  return std::nullopt;
}

// Return the operation of the second statement of a pair (two statements in one loop), or nullopt
// if a statement with this opcode cannot be the second. `first_is_left` is true if its left operand
// is the value of the first statement.
std::optional<Second> second_of_pair(Opcode opcode, bool first_is_left) {
  if (opcode == Opcode::add) return Second::Add;
  if (opcode == Opcode::subtract) return first_is_left ? Second::Subtract : Second::SubtractFrom;
  if (opcode == Opcode::multiply) return Second::Multiply;
  if (opcode == Opcode::relu) return Second::Relu;
  return std::nullopt;
}

// Return true if the operand is an immediate with the value 0, but not -0.0.
bool is_zero(const Operand& operand) {
  return operand.kind == Operand::Kind::Immediate && bits_of_immediate(operand) == 0;
}

// Return the loop that computes the statement `first` and then the statement `second`, or null if
// there is no such loop. `number` is the index of `first` in the body, by which the operands of
// `second` refer to the value of `first`.
TileFunction pair_function(const Statement& first, int number, const Statement& second) {
  if (first.dtype != second.dtype) return nullptr;
  if (first.dtype != DType::F32 && first.dtype != DType::F64) return nullptr;
  const std::size_t is_float64 = first.dtype == DType::F64;
  if (first.opcode == Opcode::greater && second.opcode == Opcode::where)
    return is_zero(second.operands[2]) ? tile_table().where_greater[is_float64] : nullptr;
  const auto first_kind = first_of_pair(first.opcode);
  const auto second_kind = second_of_pair(second.opcode, second.operands[0].is_result_of(number));
  if (!first_kind || !second_kind) return nullptr;
  return tile_table()
      .pairs[static_cast<int>(*first_kind)][static_cast<int>(*second_kind)][is_float64];
}

// Count the uses of each statement's value. One loop can compute a pair of statements without
// storing the value of the first one. So a statement can be the first of a pair only if its value
// has exactly one use, in the second statement. An output or a reduction counts as two uses, so
// that its value is always stored.
std::vector<int> count_uses(const Body& body) {
  std::vector<int> num_uses(body.statements.size());
  for (const Statement& statement : body.statements)
    for (const Operand& operand : statement.operands)
      if (operand.kind == Operand::Kind::Result)
        ++num_uses[static_cast<std::size_t>(operand.index)];
  for (const auto* stored : {&body.results, &body.reduced})
    for (const std::int64_t t : *stored) num_uses[static_cast<std::size_t>(t)] += 2;
  return num_uses;
}

}  // namespace

Pairs::Pairs(const Body& body)
    : body_(body), first_(body.statements.size(), -1), second_(body.statements.size(), -1) {
  const std::vector<int> num_uses = count_uses(body);
  for (std::size_t t = 0; t < body.statements.size(); ++t)
    for (const Operand& operand : body.statements[t].operands) {
      if (operand.kind != Operand::Kind::Result) continue;
      const auto earlier = static_cast<std::size_t>(operand.index);
      if (num_uses[earlier] != 1 || first_[earlier] >= 0) continue;
      if (!pair_function(body.statements[earlier], operand.index, body.statements[t])) continue;
      first_[t] = operand.index;
      second_[earlier] = static_cast<int>(t);
      break;
    }
}

TileFunction Pairs::function_of(int t) const {
  const int first = first_of(t);
  return pair_function(body_.statements[static_cast<std::size_t>(first)], first,
                       body_.statements[static_cast<std::size_t>(t)]);
}

}  // namespace ngd::kernels::fused
