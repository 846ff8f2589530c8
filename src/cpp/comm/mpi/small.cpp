// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/small.hpp"

#include <cstring>

#include "base/reduce.hpp"
#include "comm/mpi/transfer.hpp"
#include "comm/mpi/wire.hpp"

namespace ngd::comm::mpi {
namespace {

// Copy `count` elements of `source`, from index `from` on, to index `to` of the destination.
void copy(const Collective& collective, std::size_t to, const std::byte* source, std::size_t from,
          std::size_t count) {
  const std::size_t width = size_of(collective.dtype);
  if (count != 0)
    std::memcpy(static_cast<std::byte*>(collective.destination) + to * width, source + from * width,
                count * width);
}

}  // namespace

void finish_small(const Collective& collective, int rank, int size,
                  const std::vector<const std::byte*>& contributions) {
  const auto from = [&](int r) { return contributions[static_cast<std::size_t>(r)]; };
  const Blocks blocks(collective.counts, collective.count);
  const Slice mine = blocks[rank];
  const bool is_root = rank == collective.root;
  switch (collective.kind) {
    case Kind::Broadcast:
      return copy(collective, 0, from(collective.root), 0, collective.count);
    case Kind::Scatter:
      return copy(collective, 0, from(collective.root), mine.begin, mine.count);
    case Kind::AllGather:
    case Kind::Gather:
      for (int r = 0; r < size && (is_root || collective.kind == Kind::AllGather); ++r)
        copy(collective, blocks[r].begin, from(r), 0, blocks[r].count);
      return;
    case Kind::AllToAll:
      for (int r = 0; r < size; ++r)
        copy(collective, blocks[r].begin, from(r), mine.begin, mine.count);
      return;
    case Kind::AllReduce:
    case Kind::Reduce:
    case Kind::ReduceScatter: {
      if (collective.kind == Kind::Reduce && !is_root) return;
      const bool is_scatter = collective.kind == Kind::ReduceScatter;
      const Slice part = is_scatter ? mine : Slice{0, collective.count};
      if (part.count == 0) return;
      std::vector<const void*> terms;
      for (const std::byte* each : contributions)
        terms.push_back(each + part.begin * size_of(collective.dtype));
      reduce(combine_of(collective.op), collective.dtype, terms.data(), size,
             collective.destination, part.count, divisor_of(collective.op, size));
      return;
    }
    case Kind::Send:
    case Kind::Receive:
    case Kind::Barrier:
      return;
  }
}

}  // namespace ngd::comm::mpi
