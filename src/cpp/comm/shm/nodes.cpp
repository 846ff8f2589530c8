// SPDX-License-Identifier: Apache-2.0
// The all-reduce of ranks on several memory nodes: first inside a node, then across. There are n
// nodes of m ranks. The data are cut into m slices, and a slice into n pieces; counterparts are the
// ranks in the same place of their nodes. The rank in place i of node h goes through three acts:
//   sum       slice i of my node's sources, to my partial sum
//   combine   piece h of slice i: the counterparts' partial sums, to all ranks of my node
//   spread    the other pieces of slice i: from the counterparts who have combined them, to all
//             ranks of my node
// Each begins when all ranks have done the one before, and the end is when all have done the last.
// So a rank that others wait for is itself late, and does not wait for another one.
//
// Ranks reach across in two acts only, and only to read: a node takes in (n-1)/n of the data as
// partial sums and as much as results, the least that an all-reduce can do with between n places
// (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
// 2009, section 2). Flat, whose ranks read from all and write to all, moves m times that.
//
// m is a power of two, so the tree over a node's ranks is a subtree of the canonical one, and the
// tree over the nodes is the rest of it: the bits are flat's. A mean is that of the nodes' means,
// which do not overflow; to divide by m is exact, of all but the smallest floats. Two-byte floats
// stay with flat: their partial sums are float32, which would double what crosses, and need a
// place.
//
// Where every operand lies in the shared lane, partial sums and results stand in the destinations.
// In place this holds, too: a slice of a source is read by one rank only, before that writes to it.
// Else all of it happens in the lanes, chunk by chunk as in flat.cpp, with two more acts:
//   copy in    what my node needs of my source, into my buffer, before the sum
//   copy out   my node's parts of the results, from my buffer, in the end
// in the order  in 0, in 1, sum 0, combine 0, spread 0, out 0, in 2, ...
// My partial sum, and the results for my counterparts, stand where my buffer has my own slice.
#include <algorithm>

#include "comm/shm/algorithms.hpp"
#include "comm/shm/copy.hpp"

namespace ngd::comm::shm {

namespace {

enum Phase { kBegin, kCopyIn, kSum, kCombine, kSpread, kCopyOut };

// What I raise after an act on a chunk.
std::uint64_t in_mark(std::uint64_t chunk) { return chunk == 0 ? 1 : 4 * chunk - 2; }
std::uint64_t sum_mark(std::uint64_t chunk) { return 4 * chunk + 3; }
std::uint64_t combine_mark(std::uint64_t chunk) { return 4 * chunk + 4; }
std::uint64_t spread_mark(std::uint64_t chunk) { return 4 * chunk + 5; }

// One chunk of a task; all of it, where it is not staged. Ranges count elements of the chunk.
class Chunk {
 public:
  Chunk(Group& group, const Task& task, std::uint64_t number)
      : group_(group),
        task_(task),
        number_(number),
        element_(size_of(task.dtype)),
        nodes_(group.nodes()),
        node_(group.rank() / nodes_.ranks),
        place_(group.rank() % nodes_.ranks),
        whole_(task.staged ? flat_chunk(group, task, number) : Slice{0, task.count}),
        slice_(lines_of({0, whole_.count}, place_, nodes_.ranks, element_)) {}

  void copy_in() const {
    copy_around(buffer(group_.rank()), task_.source + whole_.begin * element_, bytes(whole_),
                slice_.begin * element_, slice_.end() * element_);
  }

  void sum() const {
    for (int place = 0; place < nodes_.ranks; ++place)
      group_.sources()[place] = source(rank_at(node_, place)) + slice_.begin * element_;
    reduce(combine_of(task_.op), task_.dtype, group_.sources(), nodes_.ranks,
           partials(group_.rank()) + slice_.begin * element_, slice_.count,
           divisor_of(task_.op, nodes_.ranks));
  }

  void combine() const {
    const Slice mine = piece(node_);
    for (int node = 0; node < nodes_.count; ++node)
      group_.sources()[node] = partials(rank_at(node, place_)) + mine.begin * element_;
    reduce_to_node(mine, nodes_.count, divisor_of(task_.op, nodes_.count), true);
  }

  void spread() const {
    for (int distance = 1; distance < nodes_.count; ++distance) {
      const int node = (node_ + distance) % nodes_.count;
      const Slice theirs = piece(node);
      group_.sources()[0] = partials(rank_at(node, place_)) + theirs.begin * element_;
      reduce_to_node(theirs, 1, 1.0, false);  // of one source: a copy
    }
  }

  void copy_out() const {
    copy_around(task_.destination + whole_.begin * element_, buffer(group_.rank()), bytes(whole_),
                slice_.begin * element_, slice_.end() * element_);
  }

 private:
  int rank_at(int node, int place) const { return node * nodes_.ranks + place; }
  std::size_t bytes(const Slice& range) const { return range.count * element_; }
  Slice piece(int node) const { return lines_of(slice_, node, nodes_.count, element_); }

  const std::byte* source(int rank) const {
    if (!task_.staged) return group_.segment(rank).at(slot(rank).source_offset);
    return rank == group_.rank() ? task_.source + whole_.begin * element_ : buffer(rank);
  }
  // Where a rank's partial sums stand, and then the results.
  std::byte* partials(int rank) const {
    return task_.staged ? buffer(rank) : group_.segment(rank).at(slot(rank).destination_offset);
  }
  std::byte* buffer(int rank) const {
    return buffer_of(group_.segment(rank), slot(rank).lane + number_);
  }
  const Slot& slot(int rank) const { return group_.segment(rank).slot(task_.sequence); }

  // Stores what the sources come to to my node's ranks; a staged one goes to my destination, and to
  // my own buffer only where my counterparts look for it.
  void reduce_to_node(const Slice& range, int sources, double divisor,
                      bool for_counterparts) const {
    int results = 0;
    const auto add = [&](std::byte* to) { group_.destinations()[results++] = to; };
    for (int place = 0; place < nodes_.ranks; ++place)
      if (place != place_ || !task_.staged || for_counterparts)
        add(partials(rank_at(node_, place)) + range.begin * element_);
    if (task_.staged) add(task_.destination + (whole_.begin + range.begin) * element_);
    reduce_to_many(combine_of(task_.op), task_.dtype, group_.sources(), sources,
                   group_.destinations(), results, range.count, divisor);
  }

  Group& group_;
  const Task& task_;
  std::uint64_t number_;
  std::size_t element_;
  Nodes nodes_;
  int node_, place_;  // mine
  Slice whole_;       // of the task
  Slice slice_;       // mine
};

bool copy_in_next(Group& group, Lane& lane, Task& task, std::uint64_t number) {
  const std::uint64_t ticket = task.lane + number;
  if (!lane.free(group, ticket)) return false;
  Chunk(group, task, number).copy_in();
  lane.hold(ticket);
  group.raise_step(task, in_mark(number));
  return true;
}

void end_act(Group& group, Task& task, std::uint64_t mark, Phase next) {
  group.raise_step(task, mark);
  task.need = group.all_step(task, mark);
  task.phase = next;
}

}  // namespace

bool begin_nodes_staged(Group& group, Lane& lane, Task& task) {
  if (!copy_in_next(group, lane, task, 0)) return false;
  task.phase = kCopyIn;
  return true;
}

bool advance_nodes(Group& group, Lane& lane, Task& task) {
  const std::uint64_t chunks = task.staged ? flat_chunks(group, task) : 1;
  const auto busy = [&](std::uint64_t number) {
    task.need = lane.guard(task.lane + number);
    return false;
  };
  if (task.phase == kBegin && !task.staged) task.phase = kSum;
  if (task.phase == kBegin && !begin_nodes_staged(group, lane, task)) return busy(0);
  while (group.met(task.need)) {
    if (task.phase == kCopyIn) {
      const std::uint64_t next = task.chunk + 1;
      if (next < chunks && !copy_in_next(group, lane, task, next)) return busy(next);
      task.lane_done = next >= chunks;
      task.need = group.all_step(task, in_mark(task.chunk));
      task.phase = kSum;
    } else if (task.phase == kSum) {
      Chunk(group, task, task.chunk).sum();
      end_act(group, task, sum_mark(task.chunk), kCombine);
    } else if (task.phase == kCombine) {
      Chunk(group, task, task.chunk).combine();
      end_act(group, task, combine_mark(task.chunk), kSpread);
    } else if (task.phase == kSpread) {
      Chunk(group, task, task.chunk).spread();
      end_act(group, task, spread_mark(task.chunk), kCopyOut);
    } else {
      if (!task.staged) return true;
      Chunk(group, task, task.chunk).copy_out();
      lane.give_back(task.lane + task.chunk);
      if (++task.chunk == chunks) return true;
      task.phase = kCopyIn;
    }
  }
  return false;
}

}  // namespace ngd::comm::shm
