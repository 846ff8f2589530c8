// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/error.hpp"
#include "kernels/fused/plan_parts.hpp"

namespace ngd::kernels::fused {

using tiles::narrowing;
using tiles::tile_table;
using tiles::widening;

namespace {

// Return true if the statement is a cast of a 16-bit float input to float32.
bool is_widened_input(const Statement& s) {
  return s.opcode == Opcode::cast && is_half(s.dtype) && s.result == DType::F32 &&
         s.operands[0].kind == Operand::Kind::Input;
}

// Return true if the statement is a cast from float32 to a 16-bit float.
bool is_narrowing_cast(const Statement& s) {
  return s.opcode == Opcode::cast && s.dtype == DType::F32 && is_half(s.result);
}

// Return the function that computes a statement for a tile. Throws Refusal if its opcode is not
// defined for its dtype.
TileFunction function_of(const Statement& statement) {
  const auto from = static_cast<int>(tile_dtype(statement.dtype));
  const TileFunction function =
      statement.opcode == Opcode::cast
          ? tile_table().casts[from][static_cast<int>(tile_dtype(statement.result))]
          : tile_table().operations[static_cast<int>(statement.opcode)][from];
  if (function == nullptr)
    throw Refusal(
        concat("an opcode of the program is not defined for ", short_name_of(statement.dtype)));
  return function;
}

// Part 4 of the planner (plan_parts.hpp): it makes the loops, and chooses the slots (tiles in
// memory) that they read and write.
class LoopPlanner {
 public:
  LoopPlanner(Plan& plan, const Body& body, const Pairs& pairs, const KernelQuery& query)
      : plan_(plan), body_(body), pairs_(pairs), query_(query), slots_(plan) {}

  void run() {
    place_outputs();
    place_inputs();
    find_last_uses();
    for (std::size_t t = 0; t < body_.statements.size(); ++t)
      if (!pairs_.is_first(static_cast<int>(t))) add_statement(static_cast<int>(t));
    for (std::size_t k = 0; k < body_.results.size(); ++k) copy_repeated_output(k);
    for (const std::int64_t t : body_.reduced) plan_.kept.push_back(slot_of_[as_index(t)]);
  }

 private:
  static std::size_t as_index(std::int64_t t) { return static_cast<std::size_t>(t); }
  const Statement& statement(int t) const { return body_.statements[as_index(t)]; }

  // Add the outputs to the plan. The slot of each output (the memory of one tile) is a part of the
  // output's own memory.
  void place_outputs() {
    for (std::size_t k = 0; k < body_.results.size(); ++k)
      plan_.outputs.push_back({slots_.in_memory(), size_of(query_.outputs[k].dtype)});
  }

  // Choose the slot of each input: the memory from which loops read a tile of its values. For a
  // 16-bit input, also add a loop that widens the tile to float32 and stores it in a buffer. The
  // other loops read this buffer.
  void place_inputs() {
    for (std::size_t i = 0; i < plan_.inputs.size(); ++i) {
      InputPlan& input = plan_.inputs[i];
      const bool has_own_memory = input.reading == Reading::InPlace ||
                                  input.reading == Reading::InRow ||
                                  input.reading == Reading::Given;
      input.slot = has_own_memory ? slots_.in_memory() : slots_.buffer();
      const DType dtype = query_.inputs[i].dtype;
      int slot = input.slot;
      if (is_half(dtype)) {
        slot = slots_.buffer();
        add_loop(widening(dtype), input.slot, slot);
      }
      slot_of_input_.push_back(slot);
    }
  }

  // Set last_use_[t] to the last statement whose loop reads the value of statement t, or to -1. If
  // a reduction reads the value, set last_use_[t] to the number of statements.
  void find_last_uses() {
    last_use_.assign(body_.statements.size(), -1);
    for (std::size_t t = 0; t < body_.statements.size(); ++t)
      for (const Operand& operand : body_.statements[t].operands)
        if (operand.kind == Operand::Kind::Result) {
          int& last = last_use_[as_index(operand.index)];
          last = std::max(last, pairs_.loop_of(static_cast<int>(t)));
        }
    for (const std::int64_t t : body_.reduced)
      last_use_[as_index(t)] = static_cast<int>(body_.statements.size());
    slot_of_.assign(body_.statements.size(), -1);
  }

  // Add a loop with one operand. It reads slot `a` (a tile in memory), and writes slot `out`.
  void add_loop(TileFunction function, int a, int out) {
    plan_.loops.push_back({function, a, out, out, out});
  }

  // Add the loops that compute statement t. A pair (two statements that one loop computes) is added
  // when t is its second statement. Then release the buffers that no later loop reads.
  void add_statement(int t) {
    const Statement& s = statement(t);
    const int output = output_of(t);
    // A cast of a 16-bit input to float32 needs no loop: place_inputs() has widened the input.
    if (is_widened_input(s) && output < 0) {
      slot_of_[as_index(t)] = slot_of(s.operands[0]);
      release_dead(t, true);
      return;
    }
    if (is_narrowing_cast(s) && output >= 0 && last_use_[as_index(t)] < 0) {
      narrow_into_output(s.result, slot_of(s.operands[0]), output);
      release_dead(t, true);
      return;
    }
    const bool is_16_bit = is_half(s.result);
    const bool is_output_slot = output >= 0 && !is_16_bit;
    TileLoop loop = loop_of(t);
    const int out = is_output_slot ? plan_.outputs[as_index(output)].slot : slots_.buffer();
    for (int* slot : {&loop.a, &loop.b, &loop.c, &loop.out})
      if (*slot < 0) *slot = out;
    plan_.loops.push_back(loop);
    if (is_16_bit)
      add_loop(s.result == DType::F16 ? tile_table().round_f16 : tile_table().round_bf16, out, out);
    if (is_16_bit && output >= 0) narrow_into_output(s.result, out, output);
    slot_of_[as_index(t)] = out;
    release_dead(t, is_output_slot);
  }

  // Return the loop that computes statement t. If t is the second of a pair, the loop computes the
  // first one before it. The slots (tiles in memory) of the result and of unused operands are -1:
  // the caller sets them.
  TileLoop loop_of(int t) {
    const int first = pairs_.first_of(t);
    TileLoop loop{nullptr, -1, -1, -1, -1};
    int* const read[] = {&loop.a, &loop.b, &loop.c};
    std::size_t count = 0;
    if (first >= 0) {
      loop.function = pairs_.function_of(t);
      for (const Operand& operand : statement(first).operands) *read[count++] = slot_of(operand);
    } else {
      loop.function = function_of(statement(t));
    }
    for (const Operand& operand : statement(t).operands)
      if (count < 3 && !(first >= 0 && operand.is_result_of(first)))
        *read[count++] = slot_of(operand);
    return loop;
  }

  // Return the number of the slot (a tile in memory) with the values of an operand.
  int slot_of(const Operand& operand) {
    switch (operand.kind) {
      case Operand::Kind::Input:
        return slot_of_input_[as_index(operand.index)];
      case Operand::Kind::Result:
        return slot_of_[as_index(operand.index)];
      case Operand::Kind::Immediate:
        break;
    }
    return slots_.constant(operand.dtype, bits_of_immediate(operand));
  }

  // Return the number of the first output that is the value of statement t, or -1 if the value is
  // not an output.
  int output_of(int t) const {
    for (std::size_t k = 0; k < body_.results.size(); ++k)
      if (body_.results[k] == t) return static_cast<int>(k);
    return -1;
  }

  // Add a loop that converts the float32 values of a slot (a tile in memory) to `dtype`, a 16-bit
  // float. The loop writes output number `output`.
  void narrow_into_output(DType dtype, int slot, int output) {
    add_loop(narrowing(dtype), slot, plan_.outputs[as_index(output)].slot);
  }

  // Release the buffers of earlier values that no loop reads after the loop of statement t. If no
  // loop reads the value of t, also release the buffer of t. If `has_no_buffer` is true, t has no
  // buffer of its own: its value is in the memory of an output, or in the buffer of its operand.
  void release_dead(int t, bool has_no_buffer) {
    if (last_use_[as_index(t)] < 0 && !has_no_buffer) slots_.release(slot_of_[as_index(t)]);
    for (int r = 0; r < t; ++r)
      if (last_use_[as_index(r)] == t && !pairs_.is_first(r) &&
          !(is_widened_input(statement(r)) && output_of(r) < 0))
        slots_.release(slot_of_[as_index(r)]);
  }

  // If output k has the value of the same statement as an earlier output, add a loop that copies
  // the earlier output to output k. Otherwise, add nothing.
  void copy_repeated_output(std::size_t k) {
    const int first = output_of(static_cast<int>(body_.results[k]));
    if (first == static_cast<int>(k)) return;
    const DType dtype = query_.outputs[k].dtype;
    const auto bits = is_half(dtype) ? DType::U16 : dtype;
    add_loop(tile_table().operations[static_cast<int>(Opcode::copy)][static_cast<int>(bits)],
             plan_.outputs[as_index(first)].slot, plan_.outputs[k].slot);
  }

  Plan& plan_;
  const Body& body_;
  const Pairs& pairs_;
  const KernelQuery& query_;
  Slots slots_;
  // The slot (a tile in memory) of each input, and of each statement's value.
  std::vector<int> slot_of_input_, slot_of_;
  std::vector<int> last_use_;  // [t]: the last statement whose loop reads the value of t, or -1
};

}  // namespace

void plan_loops(Plan& plan, const Body& body, const Pairs& pairs, const KernelQuery& query) {
  LoopPlanner(plan, body, pairs, query).run();
}

}  // namespace ngd::kernels::fused
