// SPDX-License-Identifier: Apache-2.0
// First fit with a segment tree: a binary tree whose leaves are the instructions. The span of a
// node is the range of the instructions below it. The life of a block is the range of the
// instructions during which its bytes are in use. A life is the union of the spans of a few nodes,
// at most two per level of the tree: the nodes of the life. Example: in a tree over instructions 0
// to 7, the nodes of the life 2 to 6 have the spans 2-3, 4-5 and 6. Each node keeps two sets of
// bytes:
//   throughout   the bytes of each block whose life has this node as one of its nodes. These bytes
//                are in use during all instructions of the node's span
//   during       the bytes of each block whose life has this node, or a node below it, as one of
//                its nodes
// A new block must not use bytes that another block uses at an instruction of the new block's life.
// Each of these bytes is in one of these sets: `during` of a node of the new block's life, or
// `throughout` of an ancestor of such a node. The number of sets to read therefore grows with the
// logarithm of the number of instructions. A set is a list of runs of bytes. Runs that touch are
// merged: if blocks are packed without gaps, thousands of them are one run.
#include "runtime/first_fit.hpp"

#include <algorithm>
#include <bit>

namespace ngd::runtime {

namespace {

// A run: the consecutive bytes [begin, end).
struct Run {
  std::size_t begin, end;
};

// A set of bytes, as a sorted list of runs of consecutive bytes.
class ByteSet {
 public:
  // Add the run [begin, end) of bytes to this set. Merge it with runs that overlap or touch it.
  void add(Run added) {
    auto first = std::lower_bound(runs_.begin(), runs_.end(), added.begin,
                                  [](const Run& run, std::size_t at) { return run.end < at; });
    auto last = first;
    for (; last != runs_.end() && last->begin <= added.end; ++last) {
      added.begin = std::min(added.begin, last->begin);
      added.end = std::max(added.end, last->end);
    }
    if (first == last) {
      runs_.insert(first, added);
    } else {
      *first = added;
      runs_.erase(first + 1, last);
    }
  }

  // Return the lowest offset >= `offset` at which `bytes` consecutive bytes are free. A byte is
  // free if it is not in this set.
  std::size_t lowest_free(std::size_t offset, std::size_t bytes) const {
    auto run = std::upper_bound(runs_.begin(), runs_.end(), offset,
                                [](std::size_t at, const Run& run) { return at < run.end; });
    for (; run != runs_.end() && run->begin < offset + bytes; ++run) offset = run->end;
    return offset;
  }

 private:
  std::vector<Run> runs_;
};

// A segment tree over the instructions. It stores the bytes of the memory blocks placed so far.
class LifeTree {
 public:
  explicit LifeTree(std::size_t instructions)
      : leaves_(std::bit_ceil(instructions)), throughout_(2 * leaves_), during_(2 * leaves_) {}

  // Return the lowest free offset for a block, and mark its bytes as in use during its life.
  std::size_t place(const Life& life) {
    find_nodes(life);
    const std::size_t offset = lowest_free(life.bytes);
    const Run run{offset, offset + life.bytes};
    for (const std::size_t node : spans_) {
      throughout_[node].add(run);
      during_[node].add(run);
    }
    for (const std::size_t node : above_) during_[node].add(run);
    return offset;
  }

 private:
  // Set spans_ to the nodes of the tree whose instructions together are exactly those during which
  // the block `life` is in use. Set above_ to all ancestors of these nodes.
  void find_nodes(const Life& life) {
    spans_.clear();
    above_.clear();
    std::size_t left = leaves_ + life.first, right = leaves_ + life.last;
    for (; left <= right; left /= 2, right /= 2) {
      if (left % 2 == 1) spans_.push_back(left++);
      if (right % 2 == 0) spans_.push_back(right--);
    }
    for (std::size_t node : spans_)
      for (node /= 2; node > 0; node /= 2) above_.push_back(node);
    std::sort(above_.begin(), above_.end());
    above_.erase(std::unique(above_.begin(), above_.end()), above_.end());
  }

  // Return the lowest offset at which `bytes` bytes are free during the whole life (a range of
  // instructions) that was last passed to find_nodes().
  std::size_t lowest_free(std::size_t bytes) const {
    std::size_t offset = 0, before = 0;
    do {
      before = offset;
      for (const std::size_t node : spans_) offset = during_[node].lowest_free(offset, bytes);
      for (const std::size_t node : above_) offset = throughout_[node].lowest_free(offset, bytes);
    } while (offset != before);
    return offset;
  }

  std::size_t leaves_;
  // throughout_[n] and during_[n] are the two sets of bytes that node n of the tree keeps. The head
  // of this file defines them. Node 1 is the root, and node n has the children 2n and 2n + 1.
  std::vector<ByteSet> throughout_, during_;
  std::vector<std::size_t> spans_, above_;
};

}  // namespace

std::vector<std::size_t> first_fit(const std::vector<Life>& lives) {
  std::size_t instructions = 1;
  for (const Life& life : lives) instructions = std::max(instructions, life.last + 1);
  LifeTree tree(instructions);
  std::vector<std::size_t> offsets;
  offsets.reserve(lives.size());
  for (const Life& life : lives) offsets.push_back(tree.place(life));
  return offsets;
}

}  // namespace ngd::runtime
