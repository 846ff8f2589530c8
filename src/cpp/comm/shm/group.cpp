// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/group.hpp"

#include <algorithm>
#include <string>

#include "base/error.hpp"
#include "comm/messages.hpp"

namespace ngd::comm::shm {

namespace {

std::uint64_t value_of(const Group& group, std::uint64_t sequence, Need::Flag flag, int rank) {
  switch (flag) {
    case Need::Flag::Published:
      return group.segment(rank).slot(sequence).published.load();
    case Need::Flag::Step:
      return group.segment(rank).slot(sequence).step.load();
    case Need::Flag::Finished:
      break;
  }
  return group.record(rank).finished.load();
}

std::string_view program_text(const Segment& segment, const Slot& slot) {
  if (slot.program_offset == kPrivate) return {};
  return {reinterpret_cast<const char*>(segment.at(slot.program_offset)), slot.program_length};
}

// What tells two collectives apart that describe() describes alike.
std::string particulars(const Collective& collective, std::uint64_t program_hash) {
  const char* algorithm = collective.algorithm == Algorithm::Ring ? "ring" : "flat";
  return concat(" (root ", collective.root, ", ", algorithm,
                program_hash == 0 ? ", eager" : ", in a compiled program", ")");
}

std::string difference(const Group& group, std::uint64_t sequence, int first, int second) {
  const Slot& slot_a = group.segment(first).slot(sequence);
  const Slot& slot_b = group.segment(second).slot(sequence);
  const std::string_view text_a = program_text(group.segment(first), slot_a);
  const std::string_view text_b = program_text(group.segment(second), slot_b);
  if (slot_a.program_hash != slot_b.program_hash && !text_a.empty() && !text_b.empty())
    return concat("rank ", first, " and rank ", second, " run programs with other collectives; ",
                  first_difference(first, text_a, second, text_b));
  const Collective a = group.read(sequence, first), b = group.read(sequence, second);
  Collective bare_a = a, bare_b = b;
  bare_a.site = bare_b.site = "";
  const bool alike = describe(bare_a) == describe(bare_b);
  return concat("the ranks disagree: rank ", first, ": ", describe(a),
                alike ? particulars(a, slot_a.program_hash) : "", "; rank ", second, ": ",
                describe(b), alike ? particulars(b, slot_b.program_hash) : "");
}

}  // namespace

Group::Group(std::unique_ptr<Memory> memory, std::unique_ptr<Liveness> liveness, int rank, int size)
    : memory_(std::move(memory)),
      liveness_(std::move(liveness)),
      rank_(rank),
      size_(size),
      sources_(static_cast<std::size_t>(size)),
      destinations_(static_cast<std::size_t>(size) + 1) {
  for (int r = 0; r < size; ++r) segments_.push_back(memory_->segment(r));
}

bool Group::has(const Task& task, const Need& need, int rank) const noexcept {
  return rank == rank_ || value_of(*this, task.sequence, need.flag, rank) >= need.value;
}

bool Group::met(Task& task) {
  Need& need = task.need;
  for (; need.first < need.last; ++need.first, ++moves_) {
    if (!has(task, need, need.first)) return false;
    if (need.flag == Need::Flag::Published) compare(task.sequence, need.first);
  }
  return true;
}

std::vector<int> Group::missing(const Task& task) const {
  std::vector<int> ranks;
  for (int r = task.need.first; r < task.need.last; ++r)
    if (!has(task, task.need, r)) ranks.push_back(r);
  return ranks;
}

void Group::compare(std::uint64_t sequence, int rank) const {
  if (mine().slot(sequence).fingerprint == segment(rank).slot(sequence).fingerprint) return;
  fail(ErrorKind::CollectiveMismatch,
       difference(*this, sequence, std::min(rank, rank_), std::max(rank, rank_)));
}

Collective Group::read(std::uint64_t sequence, int rank) const noexcept {
  const Slot& slot = segment(rank).slot(sequence);
  Collective collective;
  collective.kind = slot.kind;
  collective.op = slot.op;
  collective.dtype = slot.dtype;
  collective.count = slot.count;
  collective.root = slot.root;
  collective.algorithm = slot.algorithm;
  collective.site = slot.site;
  return collective;
}

Range part_of(std::size_t count, int part, int parts, std::size_t element_bytes) noexcept {
  const std::size_t line = kLine / element_bytes;
  const auto edge = [&](int i) {
    const auto even = count / static_cast<std::size_t>(parts) * static_cast<std::size_t>(i) +
                      count % static_cast<std::size_t>(parts) * static_cast<std::size_t>(i) /
                          static_cast<std::size_t>(parts);
    return i == parts ? count : std::min(count, round_up(even, line));
  };
  return {edge(part), edge(part + 1)};
}

Combine combine_of(ReduceOp op) noexcept {
  switch (op) {
    case ReduceOp::Min:
      return Combine::Min;
    case ReduceOp::Max:
      return Combine::Max;
    case ReduceOp::Prod:
      return Combine::Prod;
    default:
      return Combine::Sum;
  }
}

}  // namespace ngd::comm::shm
