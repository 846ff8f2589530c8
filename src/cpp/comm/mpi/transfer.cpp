// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/transfer.hpp"

#include <algorithm>
#include <cstring>
#include <set>

namespace ngd::comm::mpi {
namespace {

constexpr int kFirstDataTag = 1;
constexpr int kReduceLanes = 2;
constexpr int kBroadcastLanes = 4;
constexpr std::size_t kBroadcastWindowBytes = std::size_t{256} << 10;
// A lane's scratch is a window, so all of it stays near 16 MiB whatever the number of ranks; a
// slice never exceeds a quarter of kMaxMessageBytes, for partial sums may be twice as wide.
constexpr std::size_t kMaxWindowBytes = std::size_t{8} << 20;
constexpr std::size_t kMaxSliceBytes = kMaxMessageBytes / 4;

std::size_t reduce_window(const Collective& collective, int size) {
  const std::size_t bytes =
      std::min(kMaxWindowBytes, kMaxSliceBytes * static_cast<std::size_t>(size));
  return bytes / size_of(collective.dtype);
}

class FlatAllReduce final : public Transfer {
 public:
  FlatAllReduce(MPI_Comm comm, int rank, int size, const Collective& collective)
      : Transfer(comm, rank, size, collective, kReduceLanes, reduce_window(collective, size)),
        sources_(static_cast<std::size_t>(size)) {}

 private:
  bool step(Lane& lane) override {
    const Slice mine = slice(lane, rank_);
    if (lane.step == 0) {
      exchange_contributions(lane, mine);
    } else if (lane.step == 1) {
      reduce_mine(lane, mine);
      exchange_results(lane, mine);
    }
    return lane.step < 2;
  }

  void exchange_contributions(Lane& lane, const Slice& mine) {
    lane.scratch.resize(bytes(mine) * static_cast<std::size_t>(size_));
    for (int distance = 1; distance < size_; ++distance) {
      const int from = (rank_ - distance + size_) % size_;
      lane.requests.receive(contribution(lane, mine, from), bytes(mine), from, lane.tag);
    }
    for (int distance = 1; distance < size_; ++distance) {
      const int to = (rank_ + distance) % size_;
      const Slice theirs = slice(lane, to);
      lane.requests.send(source(theirs), bytes(theirs), to, lane.tag);
    }
  }

  void reduce_mine(Lane& lane, const Slice& mine) {
    for (int r = 0; r < size_; ++r)
      sources_[static_cast<std::size_t>(r)] =
          r == rank_ ? source(mine) : contribution(lane, mine, r);
    const Arithmetic arithmetic = arithmetic_of(collective_.op, size_);
    reduce(arithmetic.combine, collective_.dtype, sources_.data(), size_, destination(mine),
           mine.count, arithmetic.divisor);
  }

  void exchange_results(Lane& lane, const Slice& mine) {
    for (int distance = 1; distance < size_; ++distance) {
      const int from = (rank_ - distance + size_) % size_;
      const Slice theirs = slice(lane, from);
      lane.requests.receive(destination(theirs), bytes(theirs), from, lane.tag);
    }
    for (int distance = 1; distance < size_; ++distance)
      lane.requests.send(destination(mine), bytes(mine), (rank_ + distance) % size_, lane.tag);
  }

  std::byte* contribution(Lane& lane, const Slice& mine, int from) const {
    return lane.scratch.data() + bytes(mine) * static_cast<std::size_t>(from);
  }

  std::vector<const void*> sources_;
};

class RingAllReduce final : public Transfer {
 public:
  RingAllReduce(MPI_Comm comm, int rank, int size, const Collective& collective)
      : Transfer(comm, rank, size, collective, kReduceLanes, reduce_window(collective, size)),
        next_((rank + 1) % size),
        previous_((rank - 1 + size) % size),
        half_(is_half(collective.dtype)),
        partial_dtype_(half_ ? DType::F32 : collective.dtype) {}

 private:
  // Step k of the reduce-scatter sends slice rank - 1 - k and receives slice rank - 2 - k; after
  // n - 1 of them rank r holds slice r. Step k of the all-gather sends slice rank - k.
  bool step(Lane& lane) override {
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
    return k < 2 * exchanges;
  }

  // Scratch holds two partials, sent and received by turns, and this rank's own part widened.
  std::byte* partial(Lane& lane, int which) const {
    const std::size_t largest = lane.count / static_cast<std::size_t>(size_) + 1;
    lane.scratch.resize(3 * largest * size_of(partial_dtype_));
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
    const Arithmetic arithmetic = arithmetic_of(collective_.op, size_);
    const void* terms[] = {sum, mine};
    void* result = last && !half_ ? destination(in) : sum;
    reduce(arithmetic.combine, partial_dtype_, terms, 2, result, in.count,
           last ? arithmetic.divisor : 1.0);
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

class ChainBroadcast final : public Transfer {
 public:
  ChainBroadcast(MPI_Comm comm, int rank, int size, const Collective& collective)
      : Transfer(comm, rank, size, collective, kBroadcastLanes,
                 kBroadcastWindowBytes / size_of(collective.dtype)),
        place_((rank - collective.root + size) % size) {
    if (place_ == 0 && collective.source != collective.destination)
      std::memcpy(collective.destination, collective.source,
                  collective.count * size_of(collective.dtype));
  }

 private:
  bool step(Lane& lane) override {
    const Slice window{lane.begin, lane.count};
    if (lane.step == 0 && place_ > 0)
      lane.requests.receive(destination(window), bytes(window), (rank_ - 1 + size_) % size_,
                            lane.tag);
    if (lane.step == 1 && place_ < size_ - 1)
      lane.requests.send(destination(window), bytes(window), (rank_ + 1) % size_, lane.tag);
    return lane.step < 2;
  }

  const int place_;  // in the chain that starts at the root
};

}  // namespace

Transfer::Transfer(MPI_Comm comm, int rank, int size, const Collective& collective, int lanes,
                   std::size_t window_elements)
    : rank_(rank),
      size_(size),
      collective_(collective),
      element_bytes_(size_of(collective.dtype)),
      window_elements_(window_elements) {
  for (int i = 0; i < lanes; ++i) {
    Lane& lane = lanes_.emplace_back(comm);
    lane.next = window_elements * static_cast<std::size_t>(i);
    lane.tag = kFirstDataTag + i;
  }
}

bool Transfer::advance() {
  bool complete = true;
  for (Lane& lane : lanes_) {
    while (lane.requests.test()) {
      if (!lane.active) {
        if (lane.next >= collective_.count) break;
        lane.active = true;
        lane.begin = lane.next;
        lane.count = std::min<std::size_t>(window_elements_, collective_.count - lane.begin);
        lane.step = 0;
        lane.next += window_elements_ * lanes_.size();
      }
      lane.active = step(lane);
      ++lane.step;
      ++steps_;
    }
    complete = complete && !lane.active;
  }
  return complete;
}

std::vector<int> Transfer::pending_peers() const {
  std::set<int> peers;
  for (const Lane& lane : lanes_)
    for (int peer : lane.requests.pending_peers()) peers.insert(peer);
  return {peers.begin(), peers.end()};
}

Transfer::Slice Transfer::slice(const Lane& lane, int owner) const {
  const auto n = static_cast<std::size_t>(size_);
  const auto r = static_cast<std::size_t>(owner);
  const std::size_t begin = lane.count * r / n;
  return {lane.begin + begin, lane.count * (r + 1) / n - begin};
}

const std::byte* Transfer::source(const Slice& s) const {
  return static_cast<const std::byte*>(collective_.source) + s.begin * element_bytes_;
}

std::byte* Transfer::destination(const Slice& s) const {
  return static_cast<std::byte*>(collective_.destination) + s.begin * element_bytes_;
}

std::unique_ptr<Transfer> make_flat_all_reduce(MPI_Comm comm, int rank, int size,
                                               const Collective& collective) {
  return std::make_unique<FlatAllReduce>(comm, rank, size, collective);
}

std::unique_ptr<Transfer> make_ring_all_reduce(MPI_Comm comm, int rank, int size,
                                               const Collective& collective) {
  return std::make_unique<RingAllReduce>(comm, rank, size, collective);
}

std::unique_ptr<Transfer> make_chain_broadcast(MPI_Comm comm, int rank, int size,
                                               const Collective& collective) {
  return std::make_unique<ChainBroadcast>(comm, rank, size, collective);
}

Arithmetic arithmetic_of(ReduceOp op, int size) {
  switch (op) {
    case ReduceOp::Min:
      return {Combine::Min, 1.0};
    case ReduceOp::Max:
      return {Combine::Max, 1.0};
    case ReduceOp::Prod:
      return {Combine::Prod, 1.0};
    case ReduceOp::Mean:
      return {Combine::Sum, static_cast<double>(size)};
    case ReduceOp::Sum:
    case ReduceOp::None:
      break;
  }
  return {Combine::Sum, 1.0};
}

}  // namespace ngd::comm::mpi
