// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/transfer.hpp"

#include <algorithm>
#include <set>

namespace ngd::comm::mpi {
namespace {

// A lane's scratch is a window, so all of it stays near 16 MiB whatever the number of ranks; a
// slice never exceeds half of kMaxMessageBytes, for partial sums may be twice as wide. Enough is
// under way at once for a rank that looks every millisecond to keep a link of 10 Gbit/s busy.
constexpr std::size_t kMaxWindowBytes = std::size_t{2} << 20;
constexpr std::size_t kMaxSliceBytes = kMaxMessageBytes / 2;

}  // namespace

// ---- lanes

LaneTransfer::LaneTransfer(const Channel& channel, int tag, const Collective& collective, Cut cut)
    : channel_(channel),
      rank_(channel.rank),
      size_(channel.size()),
      collective_(collective),
      element_bytes_(size_of(collective.dtype)),
      cut_(cut) {
  check(cut.lanes <= kTagsPerCollective, "a transfer of ", cut.lanes, " lanes");
  for (int i = 0; i < cut.lanes; ++i)
    lanes_.emplace_back(channel, i, tag + i).next = cut.window * static_cast<std::size_t>(i);
}

bool LaneTransfer::advance() {
  bool complete = true;
  for (Lane& lane : lanes_) {
    while (ready(lane)) {
      if (!lane.active) {
        if (lane.next >= cut_.elements) break;
        lane.active = true;
        lane.window = {lane.next, std::min(cut_.window, cut_.elements - lane.next)};
        lane.step = 0;
        lane.next += cut_.window * lanes_.size();
      }
      const Outcome outcome = step(lane);
      if (outcome == Outcome::Blocked) break;
      lane.active = outcome == Outcome::Continues;
      ++lane.step;
      ++steps_;
    }
    complete = complete && !lane.active && lane.next >= cut_.elements;
  }
  return complete;
}

std::vector<int> LaneTransfer::pending_peers() const {
  std::set<int> peers;
  for (const Lane& lane : lanes_)
    for (int peer : lane.requests.pending_peers()) peers.insert(peer);
  return {peers.begin(), peers.end()};
}

const std::byte* LaneTransfer::source(const Slice& s) const {
  return static_cast<const std::byte*>(collective_.source) + s.begin * element_bytes_;
}

std::byte* LaneTransfer::destination(const Slice& s) const {
  return static_cast<std::byte*>(collective_.destination) + s.begin * element_bytes_;
}

// ---- streams

Stream::Stream(const Channel& channel, int peer, int tag, const void* source, void* destination,
               std::size_t bytes)
    : peer_(peer),
      tag_(tag),
      source_(static_cast<const std::byte*>(source)),
      destination_(static_cast<std::byte*>(destination)),
      bytes_(bytes) {
  const std::size_t slots = std::min(kDepth, (bytes + kMaxMessageBytes - 1) / kMaxMessageBytes);
  for (std::size_t i = 0; i < slots; ++i) slots_.emplace_back(channel);
}

bool Stream::advance(std::uint64_t& steps) {
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

std::vector<int> Stream::pending_peers() const {
  std::vector<int> peers;
  for (const Requests& slot : slots_)
    if (peers.empty()) peers = slot.pending_peers();
  return peers;
}

// ---- choosing

std::unique_ptr<Transfer> make_transfer(const Channel& channel, int tag,
                                        const Collective& collective) {
  switch (collective.kind) {
    case Kind::AllReduce:
      if (collective.algorithm == Algorithm::Ring && channel.size() > 1)
        return make_ring_all_reduce(channel, tag, collective);
      [[fallthrough]];
    case Kind::Reduce:
    case Kind::ReduceScatter:
      return make_flat_reduction(channel, tag, collective);
    case Kind::Broadcast:
      return make_chain_broadcast(channel, tag, collective);
    case Kind::AllGather:
    case Kind::Gather:
    case Kind::Scatter:
    case Kind::AllToAll:
      return make_block_exchange(channel, tag, collective);
    case Kind::Send:
    case Kind::Receive:
    case Kind::Barrier:
      break;  // no data that outgrow a header, or no collective (pairs.hpp)
  }
  fail(ErrorKind::Internal, describe(collective), ": no transfer of this kind");
}

std::size_t reduce_window(DType dtype, int owners) {
  const std::size_t bytes =
      std::min(kMaxWindowBytes, kMaxSliceBytes * static_cast<std::size_t>(owners));
  return bytes / size_of(dtype);
}

}  // namespace ngd::comm::mpi
