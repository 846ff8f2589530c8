// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/family.hpp"

#include <algorithm>
#include <cstring>

namespace ngd::comm::shm {

namespace {
// the time between two calls of the interrupt callback
constexpr std::uint64_t kAskNs = 50'000'000;
// the time between two checks that the processes of the peers are alive
constexpr std::uint64_t kWatchNs = 20'000'000;
}  // namespace

Family::Family(std::unique_ptr<Memory> memory, std::unique_ptr<Liveness> liveness, Place place)
    : place_(std::move(place)),
      memory_(std::move(memory)),
      liveness_(std::move(liveness)),
      heap_(*memory_, memory_->segment(place_.rank).bytes()),
      ladder_(place_.crowded) {}

std::uint64_t Family::in_flight() const noexcept {
  std::uint64_t works = 0;
  for (const Member* member : members_) works += member->in_flight();
  return works;
}

void Family::fail_with(ErrorKind kind, std::string_view message,
                       std::span<const int> ranks) noexcept {
  if (failed_ || in_child()) return;
  failed_ = true;
  const int me = job_rank(rank());
  note_failure(record(), kind, message, ranks.empty() ? std::span(&me, 1) : ranks);
  for (int r = 0; r < size(); ++r)
    if (r != rank()) wake(segment(r).record());
}

void Family::refuse(const std::string& call, bool is_closed) const {
  if (is_closed || closed_) fail(ErrorKind::GroupClosed, closed_in_order(call));
  fail_of(blamed(), ErrorKind::GroupClosed, closed_by_failure(call, why()));
}

void Family::check_rank(int rank) const {
  const RankRecord& peer = segment(rank).record();
  if (rank == place_.rank || peer.state.load() != State::Failed) return;
  const auto kind = static_cast<ErrorKind>(peer.error_kind);
  const std::string text(error_text_of(peer));
  const std::vector<int> blamed = error_ranks_of(peer);
  if (is_between_ranks(kind) || kind == ErrorKind::RemoteRank) fail_of(blamed, kind, text);
  fail_of(blamed, ErrorKind::RemoteRank, "rank ", job_rank(rank), " failed: ", text);
}

bool Family::time_to_watch(std::uint64_t now) noexcept {
  if (now - watched_ns_ < kWatchNs) return false;
  watched_ns_ = now;
  return true;
}

bool Family::time_to_ask(std::uint64_t now) noexcept {
  if (now - asked_ns_ < kAskNs) return false;
  asked_ns_ = now;
  return true;
}

std::uint64_t Family::new_control(std::uint64_t group) {
  sweep();
  const std::uint64_t offset = heap_.allocate(kControlBytes);
  // Only the first kInlineOffset bytes must be zero: each later byte is written before it is read.
  std::memset(segment(rank()).at(offset), 0, kInlineOffset);
  Segment(segment(rank()).base(), segment(rank()).bytes(), offset).control().group = group;
  return offset;
}

std::uint64_t Family::new_common(std::size_t bytes) {
  sweep();
  const std::size_t total_bytes = bytes + sizeof(Common);
  if (total_bytes < bytes)
    fail(ErrorKind::OutOfMemory, "the shared arena has no ", bytes, " bytes");
  const std::uint64_t offset = heap_.allocate(total_bytes);
  std::memset(segment(rank()).at(offset), 0, sizeof(Common));
  return offset;
}

void Family::retire(std::list<Retired> blocks) noexcept {
  retired_.splice(retired_.end(), blocks);
  sweep();
}

void Family::sweep() noexcept {
  retired_.remove_if([&](const Retired& each) {
    if (each.departed->load() < static_cast<std::uint32_t>(each.ranks)) return false;
    heap_.release(each.block);
    for (const auto* blocks : {&each.letter_boxes, &each.texts})
      for (const std::uint64_t block : *blocks) heap_.release(block);
    return true;
  });
}

}  // namespace ngd::comm::shm
