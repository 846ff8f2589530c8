// SPDX-License-Identifier: Apache-2.0
#include "kernels/fused/elementwise_walk.hpp"

#include <algorithm>
#include <cstring>

namespace ngd::kernels::fused {

namespace {

// For i < count, copy source[i * stride] to destination[i]. T is any type with the size of an
// element.
template <class T>
void gather_run(void* destination, const void* source, std::int64_t stride, std::int64_t count) {
  auto* to = static_cast<T*>(destination);
  const auto* from = static_cast<const T*>(source);
  if (stride == 0)
    std::fill(to, to + count, *from);
  else if (stride == 1)
    std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(T));
  else
    for (std::int64_t i = 0; i < count; ++i) to[i] = from[i * stride];
}

void gather_run(std::size_t item, void* destination, const void* source, std::int64_t stride,
                std::int64_t count) {
  switch (item) {
    case 1:
      return gather_run<std::uint8_t>(destination, source, stride, count);
    case 2:
      return gather_run<std::uint16_t>(destination, source, stride, count);
    case 4:
      return gather_run<std::uint32_t>(destination, source, stride, count);
    default:
      return gather_run<std::uint64_t>(destination, source, stride, count);
  }
}

// Return the address of element number `element` of an array. An element has `item` bytes.
std::byte* element_address(const void* base, std::int64_t element, std::size_t item) {
  return static_cast<std::byte*>(const_cast<void*>(base)) +
         element * static_cast<std::int64_t>(item);
}

}  // namespace

void NextTile::prefetch_part() {
  constexpr int kRead = 0, kSecondLevel = 2;
  for (std::int64_t left = part_; left > 0 && current_ < num_ranges_;) {
    Range& range = ranges_[current_];
    const std::int64_t lines = std::min(left, range.lines);
    for (std::int64_t i = 0; i < lines; ++i)
      __builtin_prefetch(range.next + i * kLine, kRead, kSecondLevel);
    range.next += lines * kLine;
    range.lines -= lines;
    left -= lines;
    if (range.lines == 0) ++current_;
  }
}

TileWalk::TileWalk(const Plan& plan, const KernelArgs& args) : plan_(plan), args_(args) {
  for (std::size_t slot = 0; slot < plan.buffer_of_slot.size(); ++slot)
    if (plan.buffer_of_slot[slot] >= 0)
      slots_[slot] = buffers_ + plan.buffer_of_slot[slot] * kTileBytes;
  for (const Constant& constant : plan.constants)
    gather_run(constant.item, slots_[constant.slot], &constant.bits, 0, plan.tile_length);
  for (std::size_t i = 0; i < plan.inputs.size(); ++i)
    if (plan.inputs[i].reading == Reading::Once) gather(i, 0, 0, plan.tile_length);
}

void TileWalk::tile(std::int64_t number) {
  const std::int64_t row = number / plan_.tiles_per_row * plan_.rows_per_tile;
  const std::int64_t column = number % plan_.tiles_per_row * plan_.tile_length;
  const std::int64_t count = plan_.rows_per_tile > 1
                                 ? std::min(plan_.rows_per_tile, plan_.rows - row) * plan_.inner
                                 : std::min(plan_.tile_length, plan_.inner - column);
  compute(row, column, row * plan_.inner + column, count);
}

void TileWalk::compute(std::int64_t row, std::int64_t column, std::int64_t begin,
                       std::int64_t count) {
  for (std::size_t k = 0; k < plan_.outputs.size(); ++k)
    slots_[plan_.outputs[k].slot] = element_address(args_.outputs[k], begin, plan_.outputs[k].item);
  next_tile_.clear();
  for (std::size_t i = 0; i < plan_.inputs.size(); ++i) read_input(i, row, column, begin, count);
  next_tile_.split(static_cast<std::int64_t>(plan_.loops.size()));
  for (const TileLoop& loop : plan_.loops) {
    next_tile_.prefetch_part();
    loop.function(slots_[loop.a], slots_[loop.b], slots_[loop.c], slots_[loop.out], count);
  }
}

void TileWalk::read_input(std::size_t i, std::int64_t row, std::int64_t column, std::int64_t begin,
                          std::int64_t count) {
  const InputPlan& input = plan_.inputs[i];
  switch (input.reading) {
    case Reading::InPlace:
      slots_[input.slot] = element_address(args_.inputs[i], begin, input.item);
      if (plan_.given.empty())
        next_tile_.add(slots_[input.slot], count * static_cast<std::int64_t>(input.item));
      break;
    case Reading::InRow:
      slots_[input.slot] =
          element_address(args_.inputs[i], row_offset(input, row) + column, input.item);
      break;
    case Reading::Once:
    case Reading::Given:
      break;
    case Reading::PerRow:
      if (column == 0 || row != current_row_) gather(i, row, column, plan_.tile_length);
      break;
    case Reading::EveryTile:
      gather(i, row, column, count);
      break;
  }
  if (i + 1 == plan_.inputs.size()) current_row_ = row;
}

// Return the index in an input's memory of the first element of row number `row`. A row is the
// elements along the plan's inner axis.
std::int64_t TileWalk::row_offset(const InputPlan& input, std::int64_t row) const {
  std::int64_t offset = 0;
  for (std::size_t axis = plan_.shape.size() - 1; axis-- > 0;) {
    offset += row % plan_.shape[axis] * input.strides[axis];
    row /= plan_.shape[axis];
  }
  return offset;
}

// Copy `count` elements of input number i to its buffer, from column `column` of row `row` on. A
// row is the elements along the plan's inner axis. After the end of a row, the copy continues in
// the next row.
void TileWalk::gather(std::size_t i, std::int64_t row, std::int64_t column, std::int64_t count) {
  const InputPlan& input = plan_.inputs[i];
  std::byte* to = slots_[input.slot];
  const std::int64_t stride = input.strides.back();
  const auto item = static_cast<std::int64_t>(input.item);
  for (; count > 0; ++row, column = 0) {
    const std::int64_t run = std::min(count, plan_.inner - column);
    const std::int64_t from = row_offset(input, row) + column * stride;
    gather_run(input.item, to, element_address(args_.inputs[i], from, input.item), stride, run);
    to += run * item;
    count -= run;
  }
}

}  // namespace ngd::kernels::fused
