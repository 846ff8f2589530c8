// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/transfer.hpp"

#include <algorithm>
#include <set>

#include "base/bits.hpp"

namespace ngd::comm::mpi {
namespace {

// Sizes in the flat reduction, which cuts the operand into slices and transfers kReduceWindows (8)
// of them at once. The scratch memory for a slice has the size of the slice: at most
// kMaxWindowBytes (2 MiB). So a transfer needs at most 16 MiB, for any number of ranks. One rank
// reduces at most kMaxPartBytes of a slice. This is half of kMaxMessageBytes, because partial sums
// of 16-bit floats are float32, which is twice as wide. These sizes keep a link of 10 Gbit/s busy
// if a rank makes progress once per millisecond.
constexpr std::size_t kMaxWindowBytes = std::size_t{2} << 20;
constexpr std::size_t kMaxPartBytes = kMaxMessageBytes / 2;

}  // namespace

// ---- windows

WindowedTransfer::WindowedTransfer(const RankSet& group, int tag, const Collective& collective,
                                   Windowing windowing)
    : group_(group),
      rank_(group.rank),
      size_(group.size()),
      collective_(collective),
      element_bytes_(size_of(collective.dtype)),
      windowing_(windowing) {
  check(windowing.num_windows <= kTagsPerCollective, "a transfer of ", windowing.num_windows,
        " windows");
  for (int i = 0; i < windowing.num_windows; ++i)
    windows_.emplace_back(group, i, tag + i).next =
        windowing.window_elements * static_cast<std::size_t>(i);
}

bool WindowedTransfer::advance() {
  bool is_complete = true;
  for (Window& window : windows_) {
    while (is_ready(window)) {
      if (!window.active) {
        if (window.next >= elements()) break;
        window.active = true;
        window.slice = {window.next, std::min(window_elements(), elements() - window.next)};
        window.step = 0;
        window.next += window_elements() * windows_.size();
      }
      const Outcome outcome = step(window);
      if (outcome == Outcome::Blocked) break;
      window.active = outcome == Outcome::Continues;
      ++window.step;
      ++steps_;
    }
    is_complete = is_complete && !window.active && window.next >= elements();
  }
  return is_complete;
}

std::vector<int> WindowedTransfer::pending_peers() const {
  std::set<int> peers;
  for (const Window& window : windows_)
    for (int peer : window.requests.pending_peers()) peers.insert(peer);
  return {peers.begin(), peers.end()};
}

const std::byte* WindowedTransfer::source(const Slice& s) const {
  return static_cast<const std::byte*>(collective_.source) + s.begin * element_bytes_;
}

std::byte* WindowedTransfer::destination(const Slice& s) const {
  return static_cast<std::byte*>(collective_.destination) + s.begin * element_bytes_;
}

// ---- long messages

LongMessage::LongMessage(const RankSet& group, int peer, int tag, const void* source,
                         void* destination, std::size_t bytes)
    : peer_(peer),
      tag_(tag),
      source_(static_cast<const std::byte*>(source)),
      destination_(static_cast<std::byte*>(destination)),
      bytes_(bytes) {
  const std::size_t slots = std::min(kDepth, divide_up(bytes, kMaxMessageBytes));
  for (std::size_t i = 0; i < slots; ++i) slots_.emplace_back(group);
}

bool LongMessage::advance(std::uint64_t& steps) {
  while (posted_ < bytes_) {
    Requests& slot = slots_[messages_ % kDepth];
    if (!slot.test()) return false;
    const std::size_t bytes = std::min(kMaxMessageBytes, bytes_ - posted_);
    if (source_ != nullptr) {
      slot.send(source_ + posted_, bytes, peer_, tag_);
    } else {
      slot.receive(destination_ + posted_, bytes, peer_, tag_);
    }
    posted_ += bytes;
    ++messages_;
    ++steps;
  }
  return std::all_of(slots_.begin(), slots_.end(), [](Requests& slot) { return slot.test(); });
}

std::vector<int> LongMessage::pending_peers() const {
  std::vector<int> peers;
  for (const Requests& slot : slots_)
    if (peers.empty()) peers = slot.pending_peers();
  return peers;
}

std::size_t reduce_window(DType dtype, int owners) {
  const std::size_t bytes =
      std::min(kMaxWindowBytes, kMaxPartBytes * static_cast<std::size_t>(owners));
  return bytes / size_of(dtype);
}

}  // namespace ngd::comm::mpi
