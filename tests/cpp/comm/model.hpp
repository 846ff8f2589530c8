// SPDX-License-Identifier: Apache-2.0
// Collectives computed by plain loops. All communicators are compared with them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <vector>

#include "base/reference.hpp"
#include "comm/collective.hpp"

namespace ngd::comm {

using reference::Bytes;

inline constexpr Kind kKindsHere[] = {Kind::ReduceScatter, Kind::AllGather, Kind::Broadcast,
                                      Kind::Reduce,        Kind::Gather,    Kind::Scatter,
                                      Kind::AllToAll};

// One case, equal on all ranks. counts[p * size + r] is the size of the block that p gives to r. It
// is empty if all blocks have `count` elements.
struct Case {
  Kind kind;
  ReduceOp op = ReduceOp::None;
  DType dtype = DType::U8;
  std::uint64_t count = 0;
  int root = 0;
  std::vector<std::uint64_t> counts = {};
  bool in_place = false;
  bool on_odd_ranks_only = false;
};

// The definition in collective.hpp, by loops over blocks.
class Model {
 public:
  Model(const Case& each, int size, unsigned seed) : case_(each), size_(size) {
    for (int r = 0; r < size; ++r)
      sources_.push_back(reference::random_inputs(each.dtype, 1,
                                                  source_elements(collective(r), r, size),
                                                  seed * 31 + static_cast<unsigned>(r))[0]);
  }

  // The collective that rank `rank` submits, without pointers.
  Collective collective(int rank) {
    Collective call;
    call.kind = case_.kind;
    call.op = case_.op;
    call.dtype = case_.dtype;
    call.count = case_.count;
    call.root = case_.root;
    call.site = "exchange.py:7";
    if (!case_.counts.empty()) {
      my_counts_.assign(static_cast<std::size_t>(size_), {});
      their_counts_.assign(static_cast<std::size_t>(size_), {});
      auto& mine = my_counts_[static_cast<std::size_t>(rank)];
      auto& theirs = their_counts_[static_cast<std::size_t>(rank)];
      for (int r = 0; r < size_; ++r) {
        mine.push_back(case_.kind == Kind::AllToAll ? block(rank, r) : block(r, r));
        theirs.push_back(block(r, rank));
      }
      call.counts = mine.data();
      if (case_.kind == Kind::AllToAll) call.receive_counts = theirs.data();
    }
    return call;
  }
  const Bytes& source(int rank) const { return sources_[static_cast<std::size_t>(rank)]; }

  Bytes destination(int rank) const {
    const int root = case_.root;
    Bytes all;
    switch (case_.kind) {
      case Kind::Broadcast:
        return source(root);
      case Kind::Gather:
        if (rank != root) return {};
        [[fallthrough]];
      case Kind::AllGather:
        for (int p = 0; p < size_; ++p) append(all, source(p));
        return all;
      case Kind::Scatter:
        return cut(root, rank);
      case Kind::AllToAll:
        for (int p = 0; p < size_; ++p) append(all, cut(p, rank));
        return all;
      case Kind::AllReduce:
        return reduced(sources_, case_.count);
      case Kind::Reduce:
        return rank == root ? reduced(sources_, case_.count) : Bytes{};
      case Kind::ReduceScatter: {
        std::vector<Bytes> blocks;
        for (int p = 0; p < size_; ++p) blocks.push_back(cut(p, rank));
        return reduced(blocks, block(rank, rank));
      }
      default:
        throw std::logic_error("not here");
    }
  }

  // The offset of this rank's block in the array of all ranks' blocks, in bytes.
  std::size_t own_offset(int rank) const {
    std::size_t sum = 0;
    for (int r = 0; r < rank; ++r) sum += block(r, r);
    return sum * size_of(case_.dtype);
  }

 private:
  std::uint64_t block(int producer, int consumer) const {
    return case_.counts.empty()
               ? case_.count
               : case_.counts[static_cast<std::size_t>(producer * size_ + consumer)];
  }
  static void append(Bytes& to, const Bytes& from) {
    to.insert(to.end(), from.begin(), from.end());
  }
  // The block of p's source that belongs to r.
  Bytes cut(int producer, int consumer) const {
    std::size_t begin = 0;
    const bool uneven = case_.kind == Kind::AllToAll;
    for (int r = 0; r < consumer; ++r) begin += uneven ? block(producer, r) : block(r, r);
    const std::size_t count = uneven ? block(producer, consumer) : block(consumer, consumer);
    const auto first =
        source(producer).begin() + static_cast<std::ptrdiff_t>(begin * size_of(case_.dtype));
    return Bytes(first, first + static_cast<std::ptrdiff_t>(count * size_of(case_.dtype)));
  }
  Bytes reduced(const std::vector<Bytes>& operands, std::size_t count) const {
    const Combine combine = case_.op == ReduceOp::Max    ? Combine::Max
                            : case_.op == ReduceOp::Min  ? Combine::Min
                            : case_.op == ReduceOp::Prod ? Combine::Prod
                                                         : Combine::Sum;
    return reference::tree(combine, case_.dtype, operands, count,
                           case_.op == ReduceOp::Mean ? size_ : 1.0);
  }

  Case case_;
  int size_;
  std::vector<Bytes> sources_;
  std::vector<std::vector<std::uint64_t>> my_counts_, their_counts_;
};

inline std::vector<std::uint64_t> random_counts(int size, std::uint64_t upto,
                                                std::mt19937& random) {
  std::vector<std::uint64_t> counts(static_cast<std::size_t>(size * size));
  for (auto& each : counts) each = random() % 3 == 0 ? 0 : random() % (upto + 1);
  return counts;
}

}  // namespace ngd::comm
