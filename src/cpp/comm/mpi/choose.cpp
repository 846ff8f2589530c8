// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/choose.hpp"

#include "base/error.hpp"
#include "comm/blocks.hpp"
#include "comm/mpi/host_layer.hpp"
#include "comm/mpi/wire.hpp"

namespace ngd::comm::mpi {

Algorithm choose_algorithm(const Collective& collective, Algorithm preferred) {
  if (collective.kind != Kind::AllReduce) return Algorithm::Auto;
  const Algorithm chosen =
      collective.algorithm == Algorithm::Auto ? preferred : collective.algorithm;
  return chosen == Algorithm::Auto ? Algorithm::Flat : chosen;
}

bool travels_with_header(const Collective& collective, int size) {
  const std::size_t width = size_of(collective.dtype);
  const Blocks blocks(collective.counts, collective.count);
  switch (collective.kind) {
    case Kind::AllReduce:
    case Kind::Reduce:
    case Kind::Broadcast:
      return collective.count <= kInlineBytes / width;
    case Kind::AllGather:
    case Kind::Gather:
      return blocks.largest(size) <= kInlineBytes / width;
    case Kind::AllToAll:
      if (collective.counts != nullptr)
        return false;  // a rank does not know how much the other ranks send
      [[fallthrough]];
    case Kind::ReduceScatter:
    case Kind::Scatter: {
      const Slice last = blocks[size - 1];
      return last.begin + last.count <= kInlineBytes / width;
    }
    case Kind::Send:
    case Kind::Receive:
    case Kind::Barrier:
      break;
  }
  return true;
}

std::unique_ptr<Transfer> choose_transfer(const RankSet& group, HostLayer* hosts, int tag,
                                          const Collective& collective) {
  if (hosts != nullptr)
    if (std::unique_ptr<Transfer> transfer = hosts->make_transfer(tag, collective)) return transfer;
  switch (collective.kind) {
    case Kind::AllReduce:
      if (collective.algorithm == Algorithm::Ring && group.size() > 1)
        return make_ring_all_reduce(group, tag, collective);
      [[fallthrough]];
    case Kind::Reduce:
    case Kind::ReduceScatter:
      return make_flat_reduction(group, tag, collective);
    case Kind::Broadcast:
      return make_chain_broadcast(group, tag, collective);
    case Kind::AllGather:
    case Kind::Gather:
    case Kind::Scatter:
    case Kind::AllToAll:
      return make_block_exchange(group, tag, collective);
    case Kind::Send:
    case Kind::Receive:
    case Kind::Barrier:
      break;  // a barrier has no data, and class Pairs (pairs.hpp) runs sends and receives
  }
  fail(ErrorKind::Internal, describe(collective), ": no transfer of this kind");
}

}  // namespace ngd::comm::mpi
