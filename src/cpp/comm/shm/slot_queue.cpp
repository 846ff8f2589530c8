// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/slot_queue.hpp"

#include <algorithm>
#include <cstring>

#include "comm/messages.hpp"
#include "comm/shm/choose.hpp"

namespace ngd::comm::shm {

namespace {

// A rank reports its progress (Control::finished) only once per kReportInterval finished
// collectives. The peers need the report only before they use a slot (the record of a collective)
// for another collective.
constexpr std::uint64_t kReportInterval = kSlots / 4;

}  // namespace

SlotQueue::SlotQueue(Group& group, ProgramTexts& texts, bool checked)
    : group_(group), texts_(texts), checked_(checked), preferred_(preferred_algorithm()) {}

std::uint64_t SlotQueue::submit(const Collective& collective, Statistics::Entry stats) {
  const std::uint64_t sequence = submitted_ + backlog_.size() + 1;
  const ProgramText program = texts_.text_of(collective.program, sequence, slots_free_to_);
  if (!backlog_.empty() || !has_free_slot()) [[unlikely]]
    add_to_backlog(collective, stats, program);
  else
    start(collective, stats, program, 0);
  return sequence;
}

void SlotQueue::start(const Collective& collective, Statistics::Entry stats,
                      const ProgramText& program, std::uint64_t waited_ns) {
  const std::uint64_t sequence = submitted_ + 1;
  Task& new_task = task(sequence);
  new_task.begin(sequence);
  new_task.stats = stats;
  new_task.waited_ns = waited_ns;
  new_task.moved_bytes = larger_side_bytes(collective, group_.rank(), group_.size());
  fill_in(new_task, collective);
  choose_from_call(group_, new_task, collective);
  publish(new_task, collective, program);
  submitted_ = sequence;
}

// Return true if the slot (the record that the peers read) of the next collective s is free: all
// ranks have finished collective s - kSlots, which used the slot before. Until then, they may still
// read the slot.
bool SlotQueue::has_free_slot() {
  if (submitted_ < slots_free_to_) [[likely]]
    return true;
  const std::uint64_t oldest = round_up(submitted_ + 1 - kSlots, kReportInterval);
  if (finished_ < oldest) return false;
  if (next_slots_.sequence != oldest)
    next_slots_ = group_.all(Need::Flag::Finished, oldest, oldest);
  if (!group_.met(next_slots_)) return false;
  slots_free_to_ = oldest + kSlots;
  return true;
}

void SlotQueue::report_finished(std::uint64_t before) {
  if (finished_ / kReportInterval != before / kReportInterval)
    group_.raise(group_.control(group_.rank()).finished, finished_);
}

// ---- the backlog

void SlotQueue::add_to_backlog(const Collective& collective, Statistics::Entry stats,
                               const ProgramText& program) {
  Backlogged& entry = backlog_.emplace_back();
  entry.collective = collective;
  const auto ranks = static_cast<std::size_t>(group_.size());
  if (collective.counts != nullptr)
    entry.counts.assign(collective.counts, collective.counts + ranks);
  if (collective.receive_counts != nullptr)
    entry.receive_counts.assign(collective.receive_counts, collective.receive_counts + ranks);
  if (collective.layout != nullptr) {
    entry.layout = *collective.layout;
    entry.layout_numbers.assign(entry.layout.numbers, entry.layout.numbers + entry.layout.known);
    entry.layout.numbers = entry.layout_numbers.data();
  }
  copy_site(collective.site, entry.site);
  entry.stats = stats;
  entry.program = program;
  entry.since_ns = now_ns();
}

Collective SlotQueue::Backlogged::view() const noexcept {
  Collective view = collective;
  if (view.counts != nullptr) view.counts = counts.data();
  if (view.receive_counts != nullptr) view.receive_counts = receive_counts.data();
  if (view.layout != nullptr) view.layout = &layout;
  view.program = nullptr;  // the caller may have freed it. start() gets a copy, Backlogged::program
  view.site = site;
  return view;
}

int SlotQueue::start_from_backlog() {
  int started = 0;
  while (!backlog_.empty() && has_free_slot()) {
    const Backlogged& oldest = backlog_.front();
    start(oldest.view(), oldest.stats, oldest.program, now_ns() - oldest.since_ns);
    backlog_.pop_front();
    ++started;
  }
  return started;
}

// ---- publishing

void SlotQueue::fill_in(Task& task, const Collective& collective) {
  task.kind = collective.kind;
  task.op = reduces(collective.kind) ? collective.op : ReduceOp::None;
  task.dtype = collective.dtype;
  task.algorithm = requested_algorithm(collective, preferred_, group_.size());
  task.root = has_root(collective.kind) ? collective.root : 0;
  task.has_counts = collective.counts != nullptr;
  task.count = collective.kind == Kind::Barrier ? 0 : collective.count;
  task.source = static_cast<const std::byte*>(collective.source);
  task.destination = static_cast<std::byte*>(collective.destination);
  task.need = group_.all(Need::Flag::Published, task.sequence, task.sequence);
}

void SlotQueue::publish(Task& task, const Collective& collective, const ProgramText& program) {
  const Segment& mine = group_.mine();
  Slot& slot = mine.slot(task.sequence);
  CallRecord& call = slot.call;
  call.assign(collective, group_.size());
  call.identity.algorithm = task.algorithm;
  call.identity.program_hash = program.hash;
  call.computation = program.computation;
  if (checked_) slot.fingerprint = call.fingerprint(group_.id());
  slot.layout = Layout::Of::Row;
  if (collective.layout != nullptr) publish_layout(slot, task.sequence, *collective.layout);
  publish_operands(task, slot, collective);
  slot.step.store(0, std::memory_order_relaxed);
  const auto* exchange = std::get_if<Exchange>(&task.state);
  slot.taken.store(exchange != nullptr && exchange->takes_nothing() ? kAll : 0,
                   std::memory_order_relaxed);
  slot.arrived_ns = now_ns();
  slot.program_offset = program.offset;
  slot.program_length = program.length;
  mine.control().sequence.store(task.sequence, std::memory_order_relaxed);
  group_.raise(slot.published, task.sequence);
}

void SlotQueue::publish_layout(Slot& slot, std::uint64_t sequence, const Layout& layout) {
  slot.layout = layout.of;
  slot.layout_entries = static_cast<std::uint32_t>(layout.entries);
  std::copy_n(layout.numbers, std::min(layout.known, kLayoutNumbers),
              group_.mine().layout_numbers(sequence));
}

// Publish the counts of this rank, if the caller has given any. Then publish a copy of the source
// if it is small (is_inline), otherwise the offsets of the operands.
void SlotQueue::publish_operands(Task& task, Slot& slot, const Collective& collective) {
  const Segment& mine = group_.mine();
  const std::size_t counts_bytes = task.counts_bytes(group_.size());
  if (counts_bytes > 0) std::memcpy(mine.payload(task.sequence), collective.counts, counts_bytes);
  const std::size_t bytes =
      source_elements(collective, group_.rank(), group_.size()) * size_of(task.dtype);
  auto* exchange = std::get_if<Exchange>(&task.state);
  const bool is_inline = exchange != nullptr
                             ? counts_bytes + exchange->source_bytes() <= kInlineBytes
                             : task.runs<Inline>();
  slot.destination_offset = kPrivate;
  if (is_inline) {
    slot.source_offset = kInline;
    if (bytes > 0)
      std::memcpy(inline_payload(mine, task.sequence, bytes, counts_bytes), task.source, bytes);
    if (exchange != nullptr) exchange->publish_inline();
    return;
  }
  slot.source_offset = mine.offset_of(task.source, bytes);
  if (const std::uint64_t elements = destination_elements(collective, group_.rank(), group_.size());
      elements > 0)
    slot.destination_offset = mine.offset_of(task.destination, elements * size_of(task.dtype));
  choose_from_operands(group_, task);
}

}  // namespace ngd::comm::shm
