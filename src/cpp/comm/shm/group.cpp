// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/group.hpp"

#include <algorithm>
#include <string>

#include "base/error.hpp"
#include "comm/messages.hpp"

namespace ngd::comm::shm {

namespace {

std::string_view program_text(const Segment& segment, const Slot& slot) {
  const std::uint64_t offset = slot.program_offset, bytes = slot.program_length;
  if (offset > segment.bytes() || bytes > segment.bytes() - offset) return {};  // kPrivate, too
  return {reinterpret_cast<const char*>(segment.at(offset)), bytes};
}

// The options of a collective that describe() leaves out.
std::string options(const Group& group, const Collective& collective, const Slot& slot) {
  std::string text = concat(" (", options_of(collective, slot.program_hash != 0));
  if (collective.counts != nullptr) {
    text += ", counts";
    for (int r = 0; r < group.size(); ++r) text += concat(" ", collective.counts[r]);
  }
  return text + ")";
}

Layout layout_of(const Segment& segment, std::uint64_t sequence) {
  const Slot& slot = segment.slot(sequence);
  if (slot.layout == Layout::Of::Row) return {};
  const std::size_t entries = slot.layout_entries;
  return {slot.layout, slot.layout_hash, entries, std::min(entries, kLayoutNumbers),
          segment.layout_numbers(sequence)};
}

std::string difference(const Group& group, std::uint64_t sequence, int first, int second) {
  const Slot& slot_a = group.segment(first).slot(sequence);
  const Slot& slot_b = group.segment(second).slot(sequence);
  const int rank_a = group.world(first), rank_b = group.world(second);
  const std::string_view text_a = program_text(group.segment(first), slot_a);
  const std::string_view text_b = program_text(group.segment(second), slot_b);
  const Collective a = group.read(sequence, first), b = group.read(sequence, second);
  if (slot_a.bare_fingerprint == slot_b.bare_fingerprint)
    return mismatch_of_computations(group.where(), {rank_a, describe(a)}, text_a,
                                    {rank_b, describe(b)}, text_b);
  if (slot_a.program_hash != slot_b.program_hash && !text_a.empty() && !text_b.empty())
    return mismatch_of_collectives(group.where(), rank_a, text_a, rank_b, text_b);
  const bool is_layout = slot_a.layout_hash != slot_b.layout_hash;
  const bool is_alike = !is_layout && are_described_alike(a, b);
  const std::string arrays =
      is_layout ? layout_difference(rank_a, layout_of(group.segment(first), sequence), rank_b,
                                    layout_of(group.segment(second), sequence)) +
                      ".\n"
                : "";
  return mismatch(concat(kDifferentCollectives, group.where()),
                  {rank_a, describe(a) + (is_alike ? options(group, a, slot_a) : "")},
                  {rank_b, describe(b) + (is_alike ? options(group, b, slot_b) : "")},
                  concat(arrays, kSameCalls));
}

Nodes nodes_of_members(const std::vector<Group::Member>& members) {
  std::vector<int> nodes;
  for (const Group::Member& each : members) nodes.push_back(each.segment.record().node);
  return nodes_of(nodes);
}

}  // namespace

Group::Group(std::vector<Member> members, int rank, std::uint64_t id, std::uint64_t& moves,
             bool checked, const Computations& held)
    : members_(std::move(members)),
      rank_(rank),
      size_(static_cast<int>(members_.size())),
      id_(id),
      moves_(moves),
      checked_(checked),
      held_(held),
      nodes_(nodes_of_members(members_)),
      sources_(members_.size()),
      destinations_(members_.size() + 1) {}

std::string Group::where() const {
  if (id_ == 0) return "";
  std::vector<int> ranks;
  for (const Member& each : members_) ranks.push_back(each.world);
  return concat(" in the group of ", list_ranks(ranks));
}

bool Group::has(const Need& need, int rank) const noexcept {
  if (rank == rank_) return true;
  const Slot& slot = segment(rank).slot(need.sequence);
  switch (need.flag) {
    case Need::Flag::Published:
      return slot.published.load() >= need.value;
    case Need::Flag::Step:
      return slot.step.load() >= need.value;
    case Need::Flag::Taken: {
      // A slot that serves a later collective already: of the earlier one all is over.
      const std::uint64_t published = slot.published.load();
      return published > need.sequence ||
             (published == need.sequence && slot.taken.load() >= need.value);
    }
    case Need::Flag::Letter:
      return false;
    case Need::Flag::Finished:
      break;
  }
  return control(rank).finished.load() >= need.value;
}

bool Group::met(Need& need) {
  for (; need.first < need.last; ++need.first, ++moves_) {
    if (!has(need, need.first)) return false;
    if (need.flag == Need::Flag::Published && checked_) compare(need.sequence, need.first);
  }
  return true;
}

std::vector<int> Group::missing(const Need& need) const {
  std::vector<int> ranks;
  for (int r = need.first; r < need.last; ++r)
    if (!has(need, r)) ranks.push_back(world(r));
  return ranks;
}

void Group::compare(std::uint64_t sequence, int rank) const {
  const Slot &ours = mine().slot(sequence), &theirs = segment(rank).slot(sequence);
  if (ours.fingerprint == theirs.fingerprint) [[likely]]
    return;
  if (ours.bare_fingerprint == theirs.bare_fingerprint && !held_.hold(theirs.computation)) return;
  const int first = std::min(rank, rank_), second = std::max(rank, rank_);
  fail_of({world(first), world(second)}, ErrorKind::CollectiveMismatch,
          difference(*this, sequence, first, second));
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
  if (slot.has_counts)
    collective.counts = reinterpret_cast<const std::uint64_t*>(segment(rank).payload(sequence));
  collective.site = slot.site;
  return collective;
}

}  // namespace ngd::comm::shm
