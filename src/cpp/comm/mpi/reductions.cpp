// SPDX-License-Identifier: Apache-2.0
// The transfers over MPI that reduce: the flat reduction and the ring.
#include <algorithm>
#include <cstring>
#include <span>

#include "comm/mpi/owners_exchange.hpp"
#include "comm/mpi/transfer.hpp"

namespace ngd::comm::mpi {
namespace {

// The flat reduction (owners_exchange.hpp): every rank owns a part of each slice, receives the
// contributions of all ranks to its part, and reduces them. In an all_reduce or a reduce, a slice
// is a range of the elements, and the parts divide it evenly. In a reduce_scatter, a slice is the
// same range of positions inside every block. The part of an owner is that range of the owner's
// block.
class FlatReduction final : public WindowedTransfer {
 public:
  FlatReduction(const RankSet& group, int tag, const Collective& collective, const Blocks& blocks)
      : WindowedTransfer(group, tag, collective, windowing(group, collective, blocks)),
        is_scatter_(collective.kind == Kind::ReduceScatter),
        blocks_(blocks),
        owners_(group) {}

 private:
  // Return how to cut the data into slices. In a reduce_scatter, a slice is a range of positions
  // inside every block, so the number of elements is the size of the largest block.
  static Windowing windowing(const RankSet& group, const Collective& collective,
                             const Blocks& blocks) {
    const std::size_t elements = reduce_window(collective.dtype, group.size());
    if (collective.kind != Kind::ReduceScatter) return {collective.count, elements, kReduceWindows};
    const auto owners = static_cast<std::size_t>(group.size());
    return {blocks.largest(group.size()), elements / owners, kReduceWindows};
  }

  Outcome step(Window& window) override {
    if (window.step == 0)
      owners_.exchange_contributions(window, bytes(owned(window, rank_)),
                                     [&](int owner) { return contribution_to(window, owner); });
    if (window.step == 1) reduce_mine(window);
    return window.step < 2 ? Outcome::Continues : Outcome::SliceComplete;
  }

  // Return the range of elements of the source that `owner` reduces now: its part of window.slice,
  // the slice that is being transferred.
  Slice owned(const Window& window, int owner) const {
    if (!is_scatter_) return part_of(window.slice, owner, size_);
    const Slice block = blocks_[owner];
    const std::size_t skipped = std::min(window.slice.begin, block.count);
    return {block.begin + skipped, std::min(window.slice.count, block.count - skipped)};
  }
  // Return this rank's data for the part of the slice that `owner` reduces.
  std::span<const std::byte> contribution_to(const Window& window, int owner) const {
    const Slice part = owned(window, owner);
    return {source(part), bytes(part)};
  }

  // Reduce the part that this rank owns. Then post the messages with the results, except in a
  // reduce_scatter, whose owners keep them.
  void reduce_mine(Window& window) {
    const std::span<const std::byte> mine = contribution_to(window, rank_);
    std::byte* result = result_of_mine(window);
    owners_.reduce(window, mine, combine_of(collective_.op), collective_.dtype, result,
                   divisor_of(collective_.op, size_));
    if (is_scatter_) return;
    const std::span<const std::byte> reduced(result, mine.size());
    const auto result_of = [&](int owner) {
      const Slice part = owned(window, owner);
      return std::span<std::byte>(destination(part), bytes(part));
    };
    if (collective_.kind == Kind::AllReduce)
      owners_.exchange_results(window, reduced, result_of);
    else
      owners_.send_results_to(collective_.root, window, reduced, result_of);
  }

  // Return the address to which this rank writes the reduced part of the slice that it owns. In a
  // reduce, only the root has a destination, so the other ranks use scratch memory.
  std::byte* result_of_mine(const Window& window) const {
    const Slice mine = owned(window, rank_);
    if (is_scatter_) return destination({window.slice.begin, mine.count});
    const bool keeps_result = collective_.kind == Kind::AllReduce || rank_ == collective_.root;
    return keeps_result ? destination(mine) : owners_.contribution(window, bytes(mine), rank_);
  }

  const bool is_scatter_;
  const Blocks blocks_;
  OwnersExchange owners_;
};

// The ring all_reduce (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
// workstations", 2009, section 3). Each rank receives only from the previous rank and sends only to
// the next rank. A slice has one part per rank. In the reduce-scatter, a partial sum of each part
// travels around the ring, and each rank adds its own elements. In the all-gather, the sums travel
// around the ring.
class RingAllReduce final : public WindowedTransfer {
 public:
  RingAllReduce(const RankSet& group, int tag, const Collective& collective)
      : WindowedTransfer(
            group, tag, collective,
            {collective.count, reduce_window(collective.dtype, group.size()), kReduceWindows}),
        next_((rank_ + 1) % size_),
        previous_((rank_ - 1 + size_) % size_),
        is_half_(is_half(collective.dtype)),
        partial_dtype_(is_half_ ? DType::F32 : collective.dtype) {}

 private:
  Slice part(const Window& window, int owner) const { return part_of(window.slice, owner, size_); }

  // Carry out step number window.step of the ring, on the elements of window.slice. The slice has n
  // parts, one per rank. The first n - 1 steps are the reduce-scatter, the next n - 1 the
  // all-gather. In step k of the reduce-scatter, rank r sends part (r - 1 - k) and receives part
  // (r - 2 - k). After the last of these steps, rank r has the whole sum of part r. In step k of
  // the all-gather, rank r sends part (r - k) and receives part (r - 1 - k). Part numbers are
  // modulo n.
  Outcome step(Window& window) override {
    const int exchanges = size_ - 1;
    const int k = window.step;
    if (k > 0 && k <= exchanges) add_mine(window, k - 1);
    if (k < exchanges) {
      exchange_partials(window, k);
    } else if (k < 2 * exchanges) {
      const int gathered = k - exchanges;
      const Slice out = part(window, ring(rank_ - gathered));
      const Slice in = part(window, ring(rank_ - 1 - gathered));
      window.requests.receive(destination(in), bytes(in), previous_, window.tag);
      window.requests.send(destination(out), bytes(out), next_, window.tag);
    }
    return k < 2 * exchanges ? Outcome::Continues : Outcome::SliceComplete;
  }

  // Return the address of area `which` of the scratch memory. Areas 0 and 1 have partial sums: one
  // is sent while the next one arrives in the other area. Their roles change at each step. Area 2
  // has this rank's own elements of the part that arrives, widened to float32 if they are 16-bit
  // floats, before they are added to the partial sum.
  std::byte* partial(Window& window, int which) const {
    const std::size_t largest = window.slice.count / static_cast<std::size_t>(size_) + 1;
    window.scratch.reserve(3 * largest * size_of(partial_dtype_));
    return window.scratch.data() +
           static_cast<std::size_t>(which) * largest * size_of(partial_dtype_);
  }

  // Post the messages of step k of the reduce-scatter: send a partial sum to the next rank, and
  // receive another one from the previous rank.
  void exchange_partials(Window& window, int k) {
    const Slice out = part(window, ring(rank_ - 1 - k));
    const Slice in = part(window, ring(rank_ - 2 - k));
    const std::size_t width = size_of(partial_dtype_);
    std::byte* sent = partial(window, (k + 1) % 2);
    if (k == 0) own_part(out, sent);
    window.requests.receive(partial(window, k % 2), in.count * width, previous_, window.tag);
    window.requests.send(sent, out.count * width, next_, window.tag);
  }

  // Add this rank's elements to the partial sum that arrived in step k. The last step completes the
  // sum and stores it in the destination.
  void add_mine(Window& window, int k) {
    const Slice in = part(window, ring(rank_ - 2 - k));
    const bool is_last = k == size_ - 2;
    std::byte* sum = partial(window, k % 2);
    std::byte* mine = partial(window, 2);
    own_part(in, mine);
    const void* terms[] = {sum, mine};
    void* result = is_last && !is_half_ ? destination(in) : sum;
    reduce(combine_of(collective_.op), partial_dtype_, terms, 2, result, in.count,
           is_last ? divisor_of(collective_.op, size_) : 1.0);
    if (is_last && is_half_)
      narrow(collective_.dtype, reinterpret_cast<const float*>(sum), destination(in), in.count);
  }

  // Copy this rank's elements of `s` to `into`, widened to float32 if they are 16-bit floats.
  void own_part(const Slice& s, std::byte* into) const {
    if (is_half_) {
      widen(collective_.dtype, source(s), reinterpret_cast<float*>(into), s.count);
    } else {
      std::memcpy(into, source(s), bytes(s));
    }
  }

  // Return `rank` modulo the number of ranks. `rank` may be negative: -1 gives the last rank.
  int ring(int rank) const { return (rank % size_ + size_) % size_; }

  const int next_;
  const int previous_;
  const bool is_half_;
  const DType partial_dtype_;
};

}  // namespace

std::unique_ptr<Transfer> make_flat_reduction(const RankSet& group, int tag,
                                              const Collective& collective) {
  return std::make_unique<FlatReduction>(group, tag, collective,
                                         Blocks(collective.counts, collective.count));
}

std::unique_ptr<Transfer> make_ring_all_reduce(const RankSet& group, int tag,
                                               const Collective& collective) {
  return std::make_unique<RingAllReduce>(group, tag, collective);
}

}  // namespace ngd::comm::mpi
