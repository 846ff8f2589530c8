// SPDX-License-Identifier: Apache-2.0
#include "kernels/fused/elementwise_plan.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "base/error.hpp"
#include "base/number.hpp"
#include "kernels/reduce/reducer.hpp"

namespace ngd::kernels::fused {

using tiles::First;
using tiles::narrowing;
using tiles::Second;
using tiles::tile_table;
using tiles::TileTable;
using tiles::widening;

namespace {

// Elements times steps below which a second thread does not pay.
constexpr std::int64_t kGrainWork = 1 << 16;

// Two-byte floats are float32 in tiles.
DType tile_dtype(DType dtype) { return is_half(dtype) ? DType::F32 : dtype; }
std::size_t tile_item(DType dtype) { return size_of(tile_dtype(dtype)); }

template <class T>
std::uint64_t bits_of(T value) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}

// An immediate's value as an element of its tile.
std::uint64_t parse_immediate(std::string_view text, DType dtype) {
  if (is_floating(dtype)) {
    if (const auto value = parse_number<double>(text)) {
      const auto single = static_cast<float>(*value);
      return dtype == DType::F64   ? bits_of(*value)
             : dtype == DType::F32 ? bits_of(single)
             : dtype == DType::F16 ? bits_of(static_cast<float>(Float16(single)))
                                   : bits_of(static_cast<float>(BFloat16(single)));
    }
  } else if (dtype == DType::U64) {
    if (const auto value = parse_number<std::uint64_t>(text)) return *value;
  } else if (const auto value = parse_number<std::int64_t>(text)) {
    return dtype == DType::Bool ? *value != 0 : static_cast<std::uint64_t>(*value);
  }
  throw Refusal(concat("immediate #", text, " is no ", short_name_of(dtype)));
}

}  // namespace

// Lays out slots and steps. A buffer whose value nobody reads any more is used again.
class Plan::Builder {
 public:
  Builder(Plan& plan, const std::vector<Instruction>& program,
          const std::vector<std::int64_t>& results, const std::vector<std::int64_t>& reduced,
          const KernelQuery& query)
      : plan_(plan), program_(program), results_(results), reduced_(reduced), query_(query) {}

  void build() {
    place_outputs();
    place_inputs();
    merge_instructions();
    find_last_uses();
    for (std::size_t t = 0; t < program_.size(); ++t) emit(static_cast<int>(t));
    for (std::size_t k = 0; k < results_.size(); ++k) copy_repeated_output(k);
    for (const std::int64_t t : reduced_)
      plan_.kept.push_back(result_slots_[static_cast<std::size_t>(t)]);
  }

  // When instruction t reads its operands: with the one that it is merged into.
  std::int64_t time_of(std::size_t t) const {
    return merged_into_[t] >= 0 ? merged_into_[t] : static_cast<std::int64_t>(t);
  }

 private:
  int new_slot(int buffer) {
    plan_.buffer_of_slot.push_back(buffer);
    if (plan_.buffer_of_slot.size() > kMaxSlots)
      throw Refusal(concat("the program needs more than ", kMaxSlots, " slots"));
    return static_cast<int>(plan_.buffer_of_slot.size()) - 1;
  }
  int new_buffer_slot() {
    if (!free_.empty()) {
      const int slot = free_.back();
      free_.pop_back();
      return slot;
    }
    if (buffers_ == kMaxBuffers)
      throw Refusal(concat("the program needs more than ", kMaxBuffers, " tiles at once"));
    return new_slot(buffers_++);
  }

  const TileTable& table() const { return tile_table(); }

  void place_outputs() {
    for (std::size_t k = 0; k < results_.size(); ++k)
      plan_.outputs.push_back({new_slot(-1), size_of(query_.outputs[k].dtype)});
  }

  // Each input's slot; two-byte floats get another, into which they are widened.
  void place_inputs() {
    for (std::size_t i = 0; i < plan_.inputs.size(); ++i) {
      InputPlan& input = plan_.inputs[i];
      const bool own_memory = input.reading == Reading::InPlace ||
                              input.reading == Reading::InRow || input.reading == Reading::Given;
      input.slot = own_memory ? new_slot(-1) : new_buffer_slot();
      const DType dtype = query_.inputs[i].dtype;
      int slot = input.slot;
      if (is_half(dtype)) {
        slot = new_buffer_slot();
        append(widening(dtype), input.slot, slot);
      }
      input_slots_.push_back(slot);
    }
  }

  // Finds the instructions that one other reads alone and whose work its loop can do (First, Second,
  // and a comparison before `where`): a pass over a tile less. On a Zen 5, 9 multiplications of 32 Ki
  // elements in turn took 11.4 us, in pairs 9.1 us.
  void merge_instructions() {
    std::vector<int> uses(program_.size());
    for (const Instruction& instruction : program_)
      for (const Operand& operand : instruction.operands)
        if (operand.kind == Operand::Kind::Result) ++uses[static_cast<std::size_t>(operand.index)];
    for (const auto* stored : {&results_, &reduced_})
      for (const std::int64_t t : *stored) uses[static_cast<std::size_t>(t)] += 2;
    merged_into_.assign(program_.size(), -1);
    merged_.assign(program_.size(), -1);
    for (std::size_t t = 0; t < program_.size(); ++t)
      for (const Operand& operand : program_[t].operands) {
        if (operand.kind != Operand::Kind::Result) continue;
        const auto before = static_cast<std::size_t>(operand.index);
        if (uses[before] != 1 || merged_[before] >= 0) continue;
        if (!merged_function(program_[before], program_[t], static_cast<int>(before))) continue;
        merged_[t] = static_cast<int>(before);
        merged_into_[before] = static_cast<int>(t);
        break;
      }
  }

  static std::optional<First> first_of(Opcode opcode) {
    if (opcode == Opcode::add) return First::Add;
    if (opcode == Opcode::subtract) return First::Subtract;
    if (opcode == Opcode::multiply) return First::Multiply;
    return std::nullopt;
  }

  static std::optional<Second> second_of(Opcode opcode, bool on_the_left) {
    if (opcode == Opcode::add) return Second::Add;
    if (opcode == Opcode::subtract) return on_the_left ? Second::Subtract : Second::SubtractFrom;
    if (opcode == Opcode::multiply) return Second::Multiply;
    if (opcode == Opcode::relu) return Second::Relu;
    return std::nullopt;
  }

  static bool is_zero(const Operand& operand) {
    return operand.kind == Operand::Kind::Immediate &&
           parse_immediate(operand.text, operand.dtype) == 0;
  }

  // The loop of an instruction and of the one, number `before`, that it reads; null: there is none.
  TileFunction merged_function(const Instruction& one, const Instruction& other, int before) const {
    if (one.dtype != other.dtype) return nullptr;
    if (one.dtype != DType::F32 && one.dtype != DType::F64) return nullptr;
    const std::size_t wide = one.dtype == DType::F64;
    if (one.opcode == Opcode::greater && other.opcode == Opcode::where)
      return is_zero(other.operands[2]) ? table().where_greater[wide] : nullptr;
    const auto first = first_of(one.opcode);
    const auto second = second_of(other.opcode, is_result(other.operands[0], before));
    if (!first || !second) return nullptr;
    return table().pairs[static_cast<int>(*first)][static_cast<int>(*second)][wide];
  }

  static bool is_result(const Operand& operand, int t) {
    return operand.kind == Operand::Kind::Result && operand.index == t;
  }

  // The loop of instruction t, and what it reads.
  Step step_of(int t, int out) {
    const Instruction& instruction = program_[static_cast<std::size_t>(t)];
    const int before = merged_[static_cast<std::size_t>(t)];
    Step step{nullptr, out, out, out, out};
    int* const read[] = {&step.a, &step.b, &step.c};
    std::size_t count = 0;
    if (before >= 0) {
      const Instruction& one = program_[static_cast<std::size_t>(before)];
      step.function = merged_function(one, instruction, before);
      for (const Operand& operand : one.operands) *read[count++] = slot_of(operand);
    } else {
      step.function = function_of(instruction);
    }
    for (const Operand& operand : instruction.operands)
      if (count < 3 && !(before >= 0 && is_result(operand, before)))
        *read[count++] = slot_of(operand);
    return step;
  }

  void find_last_uses() {
    last_use_.assign(program_.size(), -1);
    for (std::size_t t = 0; t < program_.size(); ++t)
      for (const Operand& operand : program_[t].operands)
        if (operand.kind == Operand::Kind::Result) {
          int& last = last_use_[static_cast<std::size_t>(operand.index)];
          last = std::max(last, static_cast<int>(time_of(t)));
        }
    for (const std::int64_t t : reduced_)
      last_use_[static_cast<std::size_t>(t)] = static_cast<int>(program_.size());
    result_slots_.assign(program_.size(), -1);
  }

  int slot_of(const Operand& operand) {
    switch (operand.kind) {
      case Operand::Kind::Input:
        return input_slots_[static_cast<std::size_t>(operand.index)];
      case Operand::Kind::Result:
        return result_slots_[static_cast<std::size_t>(operand.index)];
      case Operand::Kind::Immediate:
        break;
    }
    const std::uint64_t bits = parse_immediate(operand.text, operand.dtype);
    const auto [found, added] = constants_.try_emplace({tile_dtype(operand.dtype), bits}, 0);
    if (added) {
      found->second = new_constant_slot();
      plan_.constants.push_back({found->second, tile_item(operand.dtype), bits});
    }
    return found->second;
  }

  // Constants are filled before the first tile: their buffer must never have been another's.
  int new_constant_slot() {
    std::vector<int> kept;
    std::swap(kept, free_);
    const int slot = new_buffer_slot();
    std::swap(kept, free_);
    return slot;
  }

  void append(TileFunction function, int a, int out) {
    plan_.steps.push_back({function, a, out, out, out});
  }

  // The output that instruction t writes first, or -1.
  int output_of(int t) const {
    for (std::size_t k = 0; k < results_.size(); ++k)
      if (results_[k] == t) return static_cast<int>(k);
    return -1;
  }

  void emit(int t) {
    const auto at = static_cast<std::size_t>(t);
    if (merged_into_[at] >= 0) return;
    const Instruction& instruction = program_[at];
    const int output = output_of(t);
    if (is_widened_input(instruction) && output < 0) {  // its operand's tile is wide already
      result_slots_[at] = slot_of(instruction.operands[0]);
      free_dead(t, true);
      return;
    }
    if (is_narrowing(instruction) && output >= 0 && last_use_[at] < 0) {
      narrow(instruction.result, slot_of(instruction.operands[0]),
             static_cast<std::size_t>(output));
      free_dead(t, true);
      return;
    }
    const bool half = is_half(instruction.result);
    const bool direct = output >= 0 && !half;
    Step step = step_of(t, -1);
    const int out =
        direct ? plan_.outputs[static_cast<std::size_t>(output)].slot : new_buffer_slot();
    for (int* slot : {&step.a, &step.b, &step.c, &step.out})
      if (*slot < 0) *slot = out;
    plan_.steps.push_back(step);
    if (half)
      append(instruction.result == DType::F16 ? table().round_f16 : table().round_bf16, out, out);
    if (half && output >= 0) narrow(instruction.result, out, static_cast<std::size_t>(output));
    result_slots_[at] = out;
    free_dead(t, direct);
  }

  static bool is_widened_input(const Instruction& i) {
    return i.opcode == Opcode::cast && is_half(i.dtype) && i.result == DType::F32 &&
           i.operands[0].kind == Operand::Kind::Input;
  }
  static bool is_narrowing(const Instruction& i) {
    return i.opcode == Opcode::cast && i.dtype == DType::F32 && is_half(i.result);
  }

  void narrow(DType dtype, int slot, std::size_t output) {
    append(narrowing(dtype), slot, plan_.outputs[output].slot);
  }

  // After instruction t: gives back the buffers of results that nobody reads later.
  void free_dead(int t, bool direct) {
    if (last_use_[static_cast<std::size_t>(t)] < 0 && !direct)
      release(result_slots_[static_cast<std::size_t>(t)]);
    for (std::size_t r = 0; r < static_cast<std::size_t>(t); ++r)
      if (last_use_[r] == t && merged_into_[r] < 0 &&
          !(is_widened_input(program_[r]) && output_of(static_cast<int>(r)) < 0))
        release(result_slots_[r]);
  }

  void release(int slot) {
    if (plan_.buffer_of_slot[static_cast<std::size_t>(slot)] >= 0) free_.push_back(slot);
  }

  // Two outputs of one instruction: the second is a copy of the first.
  void copy_repeated_output(std::size_t k) {
    const int first = output_of(static_cast<int>(results_[k]));
    if (first == static_cast<int>(k)) return;
    const DType dtype = query_.outputs[k].dtype;
    const auto bits = is_half(dtype) ? DType::U16 : dtype;
    append(table().operations[static_cast<int>(Opcode::copy)][static_cast<int>(bits)],
           plan_.outputs[static_cast<std::size_t>(first)].slot, plan_.outputs[k].slot);
  }

  TileFunction function_of(const Instruction& instruction) const {
    const auto from = static_cast<int>(tile_dtype(instruction.dtype));
    const TileFunction function =
        instruction.opcode == Opcode::cast
            ? table().casts[from][static_cast<int>(tile_dtype(instruction.result))]
            : table().operations[static_cast<int>(instruction.opcode)][from];
    if (function == nullptr)
      throw Refusal(
          concat("an opcode of the program is not defined for ", short_name_of(instruction.dtype)));
    return function;
  }

  Plan& plan_;
  const std::vector<Instruction>& program_;
  const std::vector<std::int64_t>&results_, &reduced_;
  const KernelQuery& query_;
  std::vector<int> input_slots_, result_slots_, last_use_, free_;
  std::vector<int> merged_, merged_into_;  // by instruction: which one its loop computes; -1: none
  std::map<std::pair<DType, std::uint64_t>, int> constants_;
  int buffers_ = 0;
};

// Drops axes of length 1 and merges neighbours that every input crosses evenly, but none that is
// reduced with one that is not.
void Plan::merge_axes(const KernelQuery& query, const Shape& whole) {
  std::vector<bool> reduced(whole.size());
  if (query.attrs.has("axes"))
    for (const std::int64_t axis : query.attrs.integers("axes")) {
      if (axis < 0 || axis >= static_cast<std::int64_t>(whole.size()))
        throw Refusal(concat("axis ", axis, " is not in the shape"));
      reduced[static_cast<std::size_t>(axis)] = true;
    }
  std::size_t previous = 0;
  const std::vector<std::int64_t>& flat = query.attrs.integers("input_strides");
  if (flat.size() != query.inputs.size() * whole.size())
    throw Refusal(concat("input_strides has ", flat.size(),
                         " numbers, not inputs x axes = ", query.inputs.size() * whole.size()));
  inputs.resize(query.inputs.size());
  for (std::size_t axis = 0; axis < whole.size(); ++axis) {
    const std::int64_t length = whole[axis];
    if (length == 1) continue;
    bool mergeable = !shape.empty() && reduced[axis] == reduced[previous];
    previous = axis;
    for (std::size_t i = 0; i < inputs.size() && mergeable; ++i)
      mergeable = inputs[i].strides.back() == flat[i * whole.size() + axis] * length;
    if (mergeable)
      shape.back() *= length;
    else
      shape.push_back(length);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const std::int64_t stride = flat[i * whole.size() + axis];
      if (stride < 0) throw Refusal("a stride is negative");
      if (mergeable)
        inputs[i].strides.back() = stride;
      else
        inputs[i].strides.push_back(stride);
    }
  }
  if (shape.empty()) {
    shape.push_back(1);
    for (InputPlan& input : inputs) input.strides.push_back(1);
  }
  inner = shape.back();
  for (std::size_t axis = 0; axis + 1 < shape.size(); ++axis) rows *= shape[axis];
}

// Whole rows where at least two fit into a tile, else pieces of rows.
void Plan::choose_tiles(std::int64_t element_bytes) {
  const std::int64_t longest = kTileBytes / element_bytes;
  if (inner == 0 || rows == 0) return;
  if (rows > 1 && inner <= longest && given.empty()) {
    rows_per_tile = std::min(rows, longest / inner);
    tile_length = rows_per_tile * inner;
    tiles = (rows + rows_per_tile - 1) / rows_per_tile;
  } else {
    tile_length = std::min(inner, longest);
    tiles_per_row = (inner + longest - 1) / longest;
    tiles = rows * tiles_per_row;
  }
}

void Plan::choose_reduced_tiles(std::int64_t element_bytes, const reduce::Geometry& g) {
  const std::int64_t row = g.by_rows ? g.along.length : g.width,
                     longest = kTileBytes / element_bytes;
  if (inner != row) throw Refusal("an input is read unevenly along a row");
  if (inner == 0 || rows == 0) return;
  if (!g.by_rows) {
    rows_per_tile = g.column_pieces == 1 ? reduce::rows_of_a_tile(longest, inner) : 1;
    tile_length = rows_per_tile * g.columns;
    tiles_per_row = g.column_pieces;
  } else if (g.reduced.empty() && inner <= longest) {
    rows_per_tile = std::min(rows, longest / inner);
    tile_length = rows_per_tile * inner;
  } else {
    tile_length = std::min(inner, longest);
    tiles_per_row = (inner + longest - 1) / longest;
  }
  tiles = (rows + rows_per_tile - 1) / rows_per_tile * tiles_per_row;
}

bool Plan::is_given(std::size_t input) const {
  return std::find(given.begin(), given.end(), static_cast<std::int64_t>(input)) != given.end();
}

void Plan::choose_readings(const KernelQuery& query) {
  const Shape dense = row_major_strides(shape);
  const bool within_rows = rows_per_tile == 1;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    InputPlan& input = inputs[i];
    input.item = size_of(query.inputs[i].dtype);
    std::int64_t last = 0;
    bool constant_outside = true;
    for (std::size_t axis = 0; axis < shape.size(); ++axis) {
      last += (shape[axis] - 1) * input.strides[axis];
      if (axis + 1 < shape.size() && input.strides[axis] != 0) constant_outside = false;
    }
    if (tiles > 0 && last >= query.inputs[i].count())
      throw Refusal(concat("the strides of input ", i, " lead beyond its end"));
    const std::int64_t step = input.strides.back();
    const bool one_piece = tiles_per_row == 1 && given.empty();
    if (is_given(i)) {
      if (input.strides != dense) throw Refusal("a product is read unevenly");
      input.reading = Reading::Given;
    } else if (input.strides == dense)
      input.reading = Reading::InPlace;
    else if (constant_outside && (step == 0 || one_piece))
      input.reading = Reading::Once;
    else if (within_rows && step == 1)
      input.reading = Reading::InRow;
    else if (within_rows && step == 0 && given.empty())
      input.reading = Reading::PerRow;
    else
      input.reading = Reading::EveryTile;
  }
}

// An output may lie on an input when no tile of the input is read after the output's is written.
// Two-byte inputs are widened before anything is written.
void Plan::choose_in_place(const std::vector<Instruction>& program,
                           const std::vector<std::int64_t>& results,
                           const std::vector<std::int64_t>& times) {
  std::vector<std::int64_t> last_read(inputs.size(), -1);
  for (std::size_t t = 0; t < program.size(); ++t)
    for (const Operand& operand : program[t].operands)
      if (operand.kind == Operand::Kind::Input && !is_half(operand.dtype))
        last_read[static_cast<std::size_t>(operand.index)] =
            std::max(last_read[static_cast<std::size_t>(operand.index)], times[t]);
  for (std::size_t k = 0; k < outputs.size(); ++k)
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i].reading == Reading::InPlace && inputs[i].item == outputs[k].item &&
          last_read[i] <= results[k])
        in_place.push_back({static_cast<int>(k), static_cast<int>(i)});
}

namespace {

// The instructions that an attribute names.
const std::vector<std::int64_t>& named(const KernelQuery& query, const char* attribute,
                                       std::size_t program) {
  static const std::vector<std::int64_t> none;
  if (!query.attrs.has(attribute)) return none;
  const std::vector<std::int64_t>& numbers = query.attrs.integers(attribute);
  for (const std::int64_t t : numbers)
    if (t < 0 || t >= static_cast<std::int64_t>(program))
      throw Refusal(concat(attribute, " name ", t, ", which is no instruction"));
  return numbers;
}

}  // namespace

Plan::Plan(const KernelQuery& query) {
  const std::vector<Instruction> program = parse_program(query.attrs.text("program"), query.inputs);
  const auto& results = named(query, "results", program.size());
  const auto& reduced = named(query, "reduced", program.size());
  if (query.outputs.empty() || results.size() + reduced.size() != query.outputs.size())
    throw Refusal(concat(results.size(), " results and ", reduced.size(), " that are reduced for ",
                         query.outputs.size(), " outputs"));
  const Shape& whole = reduced.empty() ? query.outputs[0].shape : query.attrs.integers("shape");
  for (std::size_t k = 0; k < query.outputs.size(); ++k) {
    const std::int64_t t = k < results.size() ? results[k] : reduced[k - results.size()];
    if (query.outputs[k].dtype != program[static_cast<std::size_t>(t)].result)
      throw Refusal(concat("output ", k, " has not the dtype of its instruction"));
    if (k < results.size() && query.outputs[k].shape != whole)
      throw Refusal("the outputs have different shapes");
  }
  std::size_t item = 1;
  for (const Instruction& instruction : program)
    item = std::max({item, tile_item(instruction.dtype), tile_item(instruction.result)});
  if (query.attrs.has("products")) given = query.attrs.integers("products");
  merge_axes(query, whole);
  if (reduced.empty())
    choose_tiles(static_cast<std::int64_t>(item));
  else
    choose_reduced_tiles(static_cast<std::int64_t>(item),
                         reduce::make_geometry(whole, query.attrs.integers("axes")));
  choose_readings(query);
  Builder builder(*this, program, results, reduced, query);
  builder.build();
  std::vector<std::int64_t> times;
  for (std::size_t t = 0; t < program.size(); ++t) times.push_back(builder.time_of(t));
  choose_in_place(program, results, times);
  const auto work = tile_length * static_cast<std::int64_t>(steps.size());
  grain = std::max<std::int64_t>(1, kGrainWork / std::max<std::int64_t>(1, work));
}

}  // namespace ngd::kernels::fused
