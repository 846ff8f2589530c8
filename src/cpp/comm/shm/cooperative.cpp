// SPDX-License-Identifier: Apache-2.0
// The cooperative algorithm. All operands are in the shared arena (memory that all ranks of the
// host map). So each rank can read and write the operands of all ranks, and the ranks divide the
// work. They synchronise twice: when all have arrived, and when all have done their parts. Between
// these two times, no other code uses the operands.
//   broadcast    rank r copies the r-th of n near-equal parts of the root's source to all
//                destinations, tile by tile, so that each tile is read from memory once;
//   all_to_all   in place. Each pair of ranks swaps two blocks: the lower rank swaps their first
//                halves, the higher rank their second halves. No byte is moved twice, and the block
//                that a rank keeps is not moved.
// So all ranks are busy, and no more bytes are moved than necessary. The alternative is the
// exchange (exchange.cpp), in which each consumer copies its blocks. The exchange is faster for
// small broadcasts, so it carries out the broadcasts of less than 8 MiB. The table has both
// algorithms for 4 MiB too: collectives of a compiled step, float32 in place, 2 ranks, AMD EPYC
// 9005 with 32 MiB of L3, other work on its cores, least of 80 calls, in us:
//   bytes                    4 Mi   16 Mi   64 Mi
//   broadcast   cooperative   191    1124    4807
//               exchange      122    1823    7725
//   all_to_all  cooperative    54     297    2081
//               exchange      147    1795    7164
#include "comm/shm/cooperative.hpp"

#include <algorithm>
#include <cstring>

#include "comm/shm/copy.hpp"

namespace ngd::comm::shm {

namespace {

// A smaller broadcast uses the exchange (exchange.cpp), which synchronises once less. If the data
// fit the caches, one core copies them as fast as several cores. Larger data need several cores,
// because one core does not use all of the memory's bandwidth.
constexpr std::size_t kSmallestBroadcast = kPastCaches;
constexpr std::size_t kTile = 256 << 10;

// Return the address of the destination of `rank`, which is in the shared arena.
std::byte* destination_of(const Group& group, const TaskHead& task, int rank) {
  const Segment& segment = group.segment(rank);
  return segment.at(segment.slot(task.sequence).destination_offset);
}

// Copy this rank's part of the root's source to the destinations of all ranks (broadcast).
void copy_my_part(const Group& group, const TaskHead& task) {
  const Segment& root = group.segment(task.root);
  const std::byte* source = root.at(root.slot(task.sequence).source_offset);
  const Slice mine = lines_of({0, task.bytes()}, group.rank(), group.size(), 1);
  for (std::size_t at = mine.begin; at < mine.end(); at += kTile)
    for (int r = 0; r < group.size(); ++r)
      if (std::byte* to = destination_of(group, task, r); to != source)
        copy_piece(to + at, source + at, std::min(kTile, mine.end() - at), task.bytes());
}

void swap(std::byte* a, std::byte* b, std::size_t bytes) {
  struct Line {
    std::byte bytes[kLine];
  };
  std::size_t at = 0;
  for (; at + kLine <= bytes; at += kLine) {
    Line x, y;
    std::memcpy(&x, a + at, kLine);
    std::memcpy(&y, b + at, kLine);
    std::memcpy(a + at, &y, kLine);
    std::memcpy(b + at, &x, kLine);
  }
  std::swap_ranges(a + at, a + bytes, b + at);
}

// Do this rank's half of the swap of two blocks with each peer (all_to_all in place). The lower
// rank of a pair swaps the first halves of the blocks, the higher rank the second halves.
void swap_my_halves(const Group& group, const TaskHead& task) {
  const int me = group.rank(), ranks = group.size();
  const std::size_t block = task.bytes();
  for (int distance = 1; distance < ranks; ++distance) {
    const int other = (me + distance) % ranks;
    const Slice half = lines_of({0, block}, me < other ? 0 : 1, 2, 1);
    std::byte* mine = task.destination + static_cast<std::size_t>(other) * block;
    std::byte* theirs = destination_of(group, task, other) + static_cast<std::size_t>(me) * block;
    swap(mine + half.begin, theirs + half.begin, half.count);
  }
}

}  // namespace

bool Cooperative::suits(const Group& group, const TaskHead& task, int rank) noexcept {
  const Slot& slot = group.segment(rank).slot(task.sequence);
  if (slot.destination_offset == kPrivate) return false;
  if (task.kind == Kind::AllToAll)
    return !task.has_counts && slot.source_offset == slot.destination_offset;
  return task.kind == Kind::Broadcast && task.bytes() >= kSmallestBroadcast &&
         (rank != task.root || slot.source_offset != kPrivate);
}

bool Cooperative::suits_all(const Group& group, const TaskHead& task) noexcept {
  for (int r = 0; r < group.size(); ++r)
    if (!suits(group, task, r)) return false;
  return true;
}

bool Cooperative::advance(Context& context) {
  return steps_.advance(context, {kCooperative, 1}, [&](Step) {
    if (context.task.kind == Kind::Broadcast)
      copy_my_part(context.group, context.task);
    else
      swap_my_halves(context.group, context.task);
  });
}

}  // namespace ngd::comm::shm
