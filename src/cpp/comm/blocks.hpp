// SPDX-License-Identifier: Apache-2.0
// Slices and blocks: the division of an array among ranks, and the arithmetic of a reduction.
// Collectives over shared memory and over MPI use the same functions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/bits.hpp"
#include "base/reduce.hpp"
#include "comm/collective.hpp"
#include "comm/layout.hpp"

namespace ngd::comm {

// Elements [begin, end()) of an array.
struct Slice {
  std::size_t begin = 0;
  std::size_t count = 0;
  std::size_t end() const noexcept { return begin + count; }
};

// Return part number `part` of a slice that is divided into `parts` near-equal parts. Each part
// begins at slice.begin + k * unit, with an integer k. A part for which no elements are left is
// empty and at the end of the slice.
inline Slice part_of(Slice slice, int part, int parts, std::size_t unit = 1) noexcept {
  const auto n = static_cast<std::size_t>(parts);
  const auto edge = [&](int number) {
    const auto i = static_cast<std::size_t>(number);
    const std::size_t even = slice.count / n * i + slice.count % n * i / n;
    return number == parts ? slice.count : std::min(slice.count, round_up(even, unit));
  };
  const std::size_t begin = edge(part);
  return {slice.begin + begin, edge(part + 1) - begin};
}

// The blocks of an array that has one block per rank, end to end, in elements. `counts` has the
// size of each block and must outlive the object; null: every block has `count` elements.
class Blocks {
 public:
  Blocks(const std::uint64_t* counts, std::uint64_t count) noexcept
      : counts_(counts), count_(count) {}

  std::size_t count(int rank) const noexcept { return counts_ != nullptr ? counts_[rank] : count_; }
  std::size_t begin(int rank) const noexcept {
    if (counts_ == nullptr) return static_cast<std::size_t>(rank) * count_;
    std::size_t sum = 0;
    for (int r = 0; r < rank; ++r) sum += counts_[r];
    return sum;
  }
  Slice operator[](int rank) const noexcept { return {begin(rank), count(rank)}; }
  // Return the number of elements in the largest of the blocks of ranks 0 to `ranks` - 1.
  std::size_t largest(int ranks) const noexcept {
    return counts_ != nullptr ? *std::max_element(counts_, counts_ + ranks) : count_;
  }

 private:
  const std::uint64_t* counts_;
  std::uint64_t count_;
};

// Return how a reduction combines two elements; a mean combines them as a sum.
constexpr Combine combine_of(ReduceOp op) noexcept {
  switch (op) {
    case ReduceOp::Min:
      return Combine::Min;
    case ReduceOp::Max:
      return Combine::Max;
    case ReduceOp::Prod:
      return Combine::Prod;
    default:
      return Combine::Sum;
  }
}
// Return the number by which the combined value is then divided: the number of ranks for a mean,
// otherwise 1.
constexpr double divisor_of(ReduceOp op, int ranks) noexcept {
  return op == ReduceOp::Mean ? ranks : 1.0;
}

}  // namespace ngd::comm
