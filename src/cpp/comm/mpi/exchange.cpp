// SPDX-License-Identifier: Apache-2.0
// The transfers over MPI that move data and reduce nothing: the chain broadcast and the block
// exchange.
#include <algorithm>
#include <cstring>
#include <set>

#include "comm/mpi/transfer.hpp"

namespace ngd::comm::mpi {
namespace {

constexpr int kBroadcastWindows = 4;
constexpr std::size_t kBroadcastWindowBytes = std::size_t{256} << 10;

// The chain broadcast. The chain of the ranks begins with the root; each rank is followed by the
// next higher rank, and the highest rank by rank 0. The data are cut into slices. Each rank
// receives a slice from the previous rank of the chain and sends it to the next one. Up to
// kBroadcastWindows slices are transferred at once, so all links of the chain are busy.
class ChainBroadcast final : public WindowedTransfer {
 public:
  ChainBroadcast(const RankSet& group, int tag, const Collective& collective)
      : WindowedTransfer(group, tag, collective,
                         {collective.count, kBroadcastWindowBytes / size_of(collective.dtype),
                          kBroadcastWindows}),
        hop_((rank_ - collective.root + size_) % size_) {
    if (hop_ == 0 && collective.source != collective.destination)
      std::memcpy(collective.destination, collective.source,
                  collective.count * size_of(collective.dtype));
  }

 private:
  Outcome step(Window& window) override {
    if (window.step == 0 && hop_ > 0)
      window.requests.receive(destination(window.slice), bytes(window.slice),
                              (rank_ - 1 + size_) % size_, window.tag);
    if (window.step == 1 && hop_ < size_ - 1)
      window.requests.send(destination(window.slice), bytes(window.slice), (rank_ + 1) % size_,
                           window.tag);
    return window.step < 2 ? Outcome::Continues : Outcome::SliceComplete;
  }

  const int hop_;  // this rank's position in the chain; the root has position 0
};

// The block exchange: each block is one message from the rank that has the block to the rank that
// needs it. For d = 1, 2, ..., rank r sends to rank r + d and receives from rank r - d (modulo the
// number of ranks). So the messages are spread over all ranks.
class BlockExchange final : public Transfer {
 public:
  BlockExchange(const RankSet& group, int tag, const Collective& collective)
      : collective_(collective) {
    const int rank = group.rank;
    const int size = group.size();
    const bool is_from_root = collective.kind == Kind::Scatter;
    const bool is_to_root = collective.kind == Kind::Gather;
    const bool is_all_to_all = collective.kind == Kind::AllToAll;
    const std::byte* outgoing = is_all_to_all && collective.source == collective.destination
                                    ? save_source(size)
                                    : static_cast<const std::byte*>(collective.source);
    const Blocks out(collective.counts, collective.count);
    const Blocks in(is_all_to_all ? collective.receive_counts : collective.counts,
                    collective.count);
    // If the source has one block per rank, rank `to` gets block `to`. Otherwise the source is one
    // block, and every receiver gets that block.
    const bool sends_each = is_from_root || is_all_to_all;
    const bool receives_each = !is_from_root;
    for (int distance = 0; distance < size; ++distance) {
      const int to = (rank + distance) % size;
      const int from = (rank - distance + size) % size;
      const bool sends =
          is_from_root ? rank == collective.root : !is_to_root || to == collective.root;
      const bool receives =
          is_to_root ? rank == collective.root : !is_from_root || from == collective.root;
      const Slice sent = out[sends_each ? to : rank];
      const Slice received = in[receives_each ? from : rank];
      const std::byte* source = at<const std::byte>(outgoing, sends_each, sent);
      std::byte* destination = at<std::byte>(collective.destination, receives_each, received);
      if (distance == 0) {
        if (sends && receives && source != destination && sent.count != 0)
          std::memcpy(destination, source, sent.count * size_of(collective.dtype));
        continue;
      }
      if (receives) add(group, from, tag, nullptr, destination, received);
      if (sends) add(group, to, tag, source, nullptr, sent);
    }
  }

  bool advance() override {
    bool is_complete = true;
    for (LongMessage& each : messages_) is_complete = each.advance(steps_) && is_complete;
    return is_complete;
  }

  std::vector<int> pending_peers() const override {
    std::set<int> peers;
    for (const LongMessage& each : messages_)
      for (int peer : each.pending_peers()) peers.insert(peer);
    return {peers.begin(), peers.end()};
  }

 private:
  // Return the address of `block` in `array`. If `has_each` is true, the array has one block per
  // rank. Otherwise the array is that one block.
  template <class Byte, class Pointer>
  Byte* at(Pointer array, bool has_each, const Slice& block) const {
    if (array == nullptr || !has_each) return static_cast<Byte*>(array);
    return static_cast<Byte*>(array) + block.begin * size_of(collective_.dtype);
  }

  // Return a copy of the source. An exchange in place needs it, because a block that arrives may
  // overwrite a block that this rank has not sent yet.
  const std::byte* save_source(int size) {
    const auto* source = static_cast<const std::byte*>(collective_.source);
    const std::size_t bytes =
        collective_.count * static_cast<std::size_t>(size) * size_of(collective_.dtype);
    std::byte* saved = add_buffer(bytes).data();
    if (bytes != 0) std::memcpy(saved, source, bytes);
    return saved;
  }

  // Append a message with the elements of `block` to messages_: a send to `peer` if `source` is not
  // null, otherwise a receive from `peer`. If the block is empty, append nothing.
  void add(const RankSet& group, int peer, int tag, const void* source, void* destination,
           const Slice& block) {
    const std::size_t bytes = block.count * size_of(collective_.dtype);
    if (bytes != 0) messages_.emplace_back(group, peer, tag, source, destination, bytes);
  }

  const Collective collective_;
  std::vector<LongMessage> messages_;
};

}  // namespace

std::unique_ptr<Transfer> make_chain_broadcast(const RankSet& group, int tag,
                                               const Collective& collective) {
  return std::make_unique<ChainBroadcast>(group, tag, collective);
}

std::unique_ptr<Transfer> make_block_exchange(const RankSet& group, int tag,
                                              const Collective& collective) {
  return std::make_unique<BlockExchange>(group, tag, collective);
}

}  // namespace ngd::comm::mpi
