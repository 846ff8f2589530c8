// SPDX-License-Identifier: Apache-2.0
// Transfers that add up.
#include <algorithm>
#include <cstring>

#include "comm/mpi/transfer.hpp"

namespace ngd::comm::mpi {
namespace {

// In a window every rank owns a part, which it adds up: of an all_reduce and a reduce a slice, of a
// reduce_scatter the window's share of its block.
class FlatReduction final : public LaneTransfer {
 public:
  FlatReduction(const Channel& channel, int tag, const Collective& collective, const Blocks& blocks)
      : LaneTransfer(channel, tag, collective, cut(channel, collective, blocks)),
        scatters_(collective.kind == Kind::ReduceScatter),
        blocks_(blocks),
        sources_(static_cast<std::size_t>(channel.size())) {}

 private:
  static Cut cut(const Channel& channel, const Collective& collective, const Blocks& blocks) {
    const std::size_t window = reduce_window(collective.dtype, channel.size());
    if (collective.kind != Kind::ReduceScatter) return {collective.count, window, kReduceLanes};
    const auto owners = static_cast<std::size_t>(channel.size());
    return {blocks.largest(channel.size()), window / owners, kReduceLanes};
  }

  Outcome step(Lane& lane) override {
    const Slice mine = owned(lane, rank_);
    if (lane.step == 0) {
      exchange_contributions(lane, mine);
    } else if (lane.step == 1) {
      std::byte* result = result_of(lane, mine);
      reduce_mine(lane, mine, result);
      if (!scatters_) exchange_results(lane, mine, result);
    }
    return lane.step < 2 ? Outcome::Continues : Outcome::WindowComplete;
  }

  // In elements of the source.
  Slice owned(const Lane& lane, int owner) const {
    if (!scatters_) return part_of(lane.window, owner, size_);
    const Slice block = blocks_[owner];
    const std::size_t skipped = std::min(lane.window.begin, block.count);
    return {block.begin + skipped, std::min(lane.window.count, block.count - skipped)};
  }

  void exchange_contributions(Lane& lane, const Slice& mine) {
    lane.scratch.reserve(bytes(mine) * static_cast<std::size_t>(size_));
    for (int distance = 1; distance < size_; ++distance) {
      const int from = (rank_ - distance + size_) % size_;
      lane.requests.receive(contribution(lane, mine, from), bytes(mine), from, lane.tag);
    }
    for (int distance = 1; distance < size_; ++distance) {
      const int to = (rank_ + distance) % size_;
      const Slice theirs = owned(lane, to);
      lane.requests.send(source(theirs), bytes(theirs), to, lane.tag);
    }
  }

  // Where there is no place of mine for it, my own (unused) contribution's.
  std::byte* result_of(Lane& lane, const Slice& mine) const {
    if (scatters_) return destination({lane.window.begin, mine.count});
    const bool keeps = collective_.kind == Kind::AllReduce || rank_ == collective_.root;
    return keeps ? destination(mine) : contribution(lane, mine, rank_);
  }

  void reduce_mine(Lane& lane, const Slice& mine, std::byte* result) {
    for (int r = 0; r < size_; ++r)
      sources_[static_cast<std::size_t>(r)] =
          r == rank_ ? source(mine) : contribution(lane, mine, r);
    reduce(combine_of(collective_.op), collective_.dtype, sources_.data(), size_, result,
           mine.count, divisor_of(collective_.op, size_));
  }

  void exchange_results(Lane& lane, const Slice& mine, const std::byte* result) {
    const bool to_all = collective_.kind == Kind::AllReduce;
    for (int distance = 1; distance < size_; ++distance) {
      const int from = (rank_ - distance + size_) % size_;
      if (!to_all && rank_ != collective_.root) break;
      const Slice theirs = owned(lane, from);
      lane.requests.receive(destination(theirs), bytes(theirs), from, lane.tag);
    }
    for (int distance = 1; distance < size_; ++distance) {
      const int to = (rank_ + distance) % size_;
      if (to_all || to == collective_.root) lane.requests.send(result, bytes(mine), to, lane.tag);
    }
  }

  std::byte* contribution(Lane& lane, const Slice& mine, int from) const {
    return lane.scratch.data() + bytes(mine) * static_cast<std::size_t>(from);
  }

  const bool scatters_;
  const Blocks blocks_;
  std::vector<const void*> sources_;
};

class RingAllReduce final : public LaneTransfer {
 public:
  RingAllReduce(const Channel& channel, int tag, const Collective& collective)
      : LaneTransfer(
            channel, tag, collective,
            {collective.count, reduce_window(collective.dtype, channel.size()), kReduceLanes}),
        next_((rank_ + 1) % size_),
        previous_((rank_ - 1 + size_) % size_),
        half_(is_half(collective.dtype)),
        partial_dtype_(half_ ? DType::F32 : collective.dtype) {}

 private:
  Slice slice(const Lane& lane, int owner) const { return part_of(lane.window, owner, size_); }

  // Step k of the reduce-scatter sends slice rank - 1 - k and receives slice rank - 2 - k; after
  // n - 1 of them rank r holds slice r. Step k of the all-gather sends slice rank - k.
  Outcome step(Lane& lane) override {
    const int exchanges = size_ - 1;
    const int k = lane.step;
    if (k > 0 && k <= exchanges) add_mine(lane, k - 1);
    if (k < exchanges) {
      exchange_partials(lane, k);
    } else if (k < 2 * exchanges) {
      const int gathered = k - exchanges;
      const Slice out = slice(lane, ring(rank_ - gathered));
      const Slice in = slice(lane, ring(rank_ - 1 - gathered));
      lane.requests.receive(destination(in), bytes(in), previous_, lane.tag);
      lane.requests.send(destination(out), bytes(out), next_, lane.tag);
    }
    return k < 2 * exchanges ? Outcome::Continues : Outcome::WindowComplete;
  }

  // Scratch holds two partials, sent and received by turns, and this rank's own part widened.
  std::byte* partial(Lane& lane, int which) const {
    const std::size_t largest = lane.window.count / static_cast<std::size_t>(size_) + 1;
    lane.scratch.reserve(3 * largest * size_of(partial_dtype_));
    return lane.scratch.data() +
           static_cast<std::size_t>(which) * largest * size_of(partial_dtype_);
  }

  void exchange_partials(Lane& lane, int k) {
    const Slice out = slice(lane, ring(rank_ - 1 - k));
    const Slice in = slice(lane, ring(rank_ - 2 - k));
    const std::size_t width = size_of(partial_dtype_);
    std::byte* sent = partial(lane, (k + 1) % 2);
    if (k == 0) own_part(out, sent);
    lane.requests.receive(partial(lane, k % 2), in.count * width, previous_, lane.tag);
    lane.requests.send(sent, out.count * width, next_, lane.tag);
  }

  void add_mine(Lane& lane, int k) {
    const Slice in = slice(lane, ring(rank_ - 2 - k));
    const bool last = k == size_ - 2;
    std::byte* sum = partial(lane, k % 2);
    std::byte* mine = partial(lane, 2);
    own_part(in, mine);
    const void* terms[] = {sum, mine};
    void* result = last && !half_ ? destination(in) : sum;
    reduce(combine_of(collective_.op), partial_dtype_, terms, 2, result, in.count,
           last ? divisor_of(collective_.op, size_) : 1.0);
    if (last && half_)
      narrow(collective_.dtype, reinterpret_cast<const float*>(sum), destination(in), in.count);
  }

  void own_part(const Slice& s, std::byte* into) const {
    if (half_) {
      widen(collective_.dtype, source(s), reinterpret_cast<float*>(into), s.count);
    } else {
      std::memcpy(into, source(s), bytes(s));
    }
  }

  int ring(int rank) const { return (rank % size_ + size_) % size_; }

  const int next_;
  const int previous_;
  const bool half_;
  const DType partial_dtype_;
};

}  // namespace

std::unique_ptr<Transfer> make_flat_reduction(const Channel& channel, int tag,
                                              const Collective& collective) {
  return std::make_unique<FlatReduction>(channel, tag, collective,
                                         Blocks(collective.counts, collective.count));
}

std::unique_ptr<Transfer> make_ring_all_reduce(const Channel& channel, int tag,
                                               const Collective& collective) {
  return std::make_unique<RingAllReduce>(channel, tag, collective);
}

}  // namespace ngd::comm::mpi
