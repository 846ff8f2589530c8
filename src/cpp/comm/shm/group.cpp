// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/group.hpp"

#include <algorithm>
#include <string>

#include "base/error.hpp"
#include "comm/messages.hpp"

namespace ngd::comm::shm {

namespace {

// Return the published text of the compiled step that made the call of a slot, or "".
std::string_view program_text(const Segment& segment, const Slot& slot) {
  const std::uint64_t offset = slot.program_offset, bytes = slot.program_length;
  // If the rank has not published a text, the offset is kPrivate, which is larger than the size of
  // any segment. So the function returns "".
  if (offset > segment.bytes() || bytes > segment.bytes() - offset) return {};
  return {reinterpret_cast<const char*>(segment.at(offset)), bytes};
}

// Return the layout of the operands that a rank has published in `segment` for collective number
// `sequence`. If the operands are a plain sequence of elements, return the default Layout.
Layout layout_of(const Segment& segment, std::uint64_t sequence) {
  const Slot& slot = segment.slot(sequence);
  if (slot.layout == Layout::Of::Row) return {};
  const std::size_t entries = slot.layout_entries;
  return {slot.layout, slot.call.identity.layout_hash, entries, std::min(entries, kLayoutNumbers),
          segment.layout_numbers(sequence)};
}

Nodes nodes_of_group(const std::vector<Group::Rank>& ranks) {
  std::vector<int> nodes;
  for (const Group::Rank& each : ranks) nodes.push_back(each.segment.record().node);
  return nodes_of(nodes);
}

}  // namespace

Group::Group(std::vector<Rank> ranks, int rank, std::uint64_t id, std::uint64_t& moves,
             bool checked, const Computations& held)
    : ranks_(std::move(ranks)),
      rank_(rank),
      size_(static_cast<int>(ranks_.size())),
      id_(id),
      moves_(moves),
      checked_(checked),
      held_(held),
      nodes_(nodes_of_group(ranks_)),
      sources_(ranks_.size()),
      destinations_(ranks_.size() + 1) {}

std::string Group::where() const {
  if (id_ == 0) return "";
  std::vector<int> ranks;
  for (const Rank& each : ranks_) ranks.push_back(each.job_rank);
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
      // A rank overwrites its record (slot) only when all ranks have finished the collective in the
      // record. So if the record of `rank` has a later collective, `rank` has finished collective
      // need.sequence, and takes no more of its chunks.
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
    if (!has(need, r)) ranks.push_back(job_rank(r));
  return ranks;
}

void Group::compare(std::uint64_t sequence, int rank) const {
  const Slot &ours = mine().slot(sequence), &theirs = segment(rank).slot(sequence);
  if (ours.fingerprint == theirs.fingerprint) [[likely]]
    return;
  if (agree(ours.call, theirs.call, held_)) return;
  const int first = std::min(rank, rank_), second = std::max(rank, rank_);
  fail_of({job_rank(first), job_rank(second)}, ErrorKind::CollectiveMismatch,
          difference(where(), size_, details_of(sequence, first), details_of(sequence, second)));
}

CallDetails Group::details_of(std::uint64_t sequence, int rank) const {
  const Segment& theirs = segment(rank);
  const Slot& slot = theirs.slot(sequence);
  CallDetails details{job_rank(rank), slot.call, program_text(theirs, slot),
                      layout_of(theirs, sequence)};
  if (slot.call.identity.counts_hash != 0)
    details.counts = reinterpret_cast<const std::uint64_t*>(theirs.payload(sequence));
  return details;
}

}  // namespace ngd::comm::shm
