// SPDX-License-Identifier: Apache-2.0
// The all_reduce for ranks on several NUMA nodes. There are n nodes of m ranks each. The data are
// cut into m near-equal slices, and each slice into n near-equal pieces. The counterparts of a rank
// are the ranks with the same index on the other nodes. The rank with index i of node h goes
// through three acts:
//   Sum       reduce slice i of the sources of this node's ranks. The result is the partial sum of
//             this rank
//   Combine   reduce piece h of slice i: the partial sums of this rank and its counterparts. Store
//             the result at all ranks of this node
//   Spread    copy the other pieces of slice i, from the counterparts that have combined them, to
//             all ranks of this node
// An act begins when all ranks have done the act before it. The collective is complete when all
// ranks have done the last act.
//
// A rank reads from other nodes in Combine and in Spread, and never writes there. In each of these
// two acts, a node reads (n-1)/n of the data from other nodes. This is the least for an all_reduce
// between n nodes (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
// workstations", 2009, section 2). The flat algorithm, where each rank reads from all and writes to
// all, moves m times as much between nodes.
//
// The result has the same bits as the result of the flat algorithm, which reduces in the order of
// the canonical tree (base/reduce.hpp). m is a power of two, so the ranks of a node are the leaves
// of a subtree of this tree. Sum carries out the subtrees, and Combine the part of the tree above
// them. A mean is the mean of the nodes' means, which do not overflow; a division by m is exact
// except for the smallest floats. 16-bit floats use the flat algorithm: their partial sums would be
// float32, twice as large as the data, and would not fit the destinations.
//
// If every operand is in the shared arena, the partial sums and the results are stored in the
// destinations. Source and destination may be the same memory: of the ranks of a node, only the
// rank with index i reads slice i, and it reads slice i of all sources before it writes.
//
// Otherwise the data pass through the staging buffers in chunks, with two more acts (schedule.hpp):
//   CopyIn    before Sum: copy all slices but slice i from the source to this rank's buffer, where
//             the other ranks of the node read them
//   CopyOut   after Spread: copy all slices but slice i from this rank's buffer, where the other
//             ranks of the node have stored the results, to the destination
// Slice i of the rank's buffer holds the partial sum of the rank after Sum. In Combine, the rank
// overwrites piece h of slice i with the result. In Spread, the counterparts read this piece.
#include "comm/shm/nodes.hpp"

#include "comm/shm/copy.hpp"

namespace ngd::comm::shm {

namespace {

// One chunk of a collective. If the data do not pass through the staging buffers, the only chunk is
// the whole operand. A chunk is cut into m slices (m is the number of ranks per NUMA node), and a
// slice into n pieces (n is the number of nodes). Slices and pieces are stored as ranges of
// elements, relative to the beginning of the chunk.
class Chunk {
 public:
  Chunk(Context& context, std::uint64_t number)
      : group_(context.group),
        task_(context.task),
        number_(number),
        is_staged_(task_.staging.is_needed),
        element_(size_of(task_.dtype)),
        nodes_(group_.nodes()),
        node_(group_.rank() / nodes_.ranks),
        index_(group_.rank() % nodes_.ranks),
        range_(is_staged_ ? StagedChunks(group_, task_)[number] : Slice{0, task_.count}),
        slice_(lines_of({0, range_.count}, index_, nodes_.ranks, element_)) {}

  // Carry out one act of this rank on this chunk.
  void carry_out(Act act) const {
    switch (act) {
      case Act::CopyIn:
        return copy_in();
      case Act::Sum:
        return sum();
      case Act::Combine:
        return combine();
      case Act::Spread:
        return spread();
      default:
        return copy_out();
    }
  }

 private:
  // Each of the next five functions carries out one act (a phase of the algorithm) on this chunk.
  // The head of this file describes the acts.
  void copy_in() const {
    copy_around(buffer(group_.rank()), task_.source + range_.begin * element_, bytes(range_),
                slice_.begin * element_, slice_.end() * element_);
  }

  void sum() const {
    for (int index = 0; index < nodes_.ranks; ++index)
      group_.sources()[index] = source(rank_at(node_, index)) + slice_.begin * element_;
    reduce(combine_of(task_.op), task_.dtype, group_.sources(), nodes_.ranks,
           partials(group_.rank()) + slice_.begin * element_, slice_.count,
           divisor_of(task_.op, nodes_.ranks));
  }

  void combine() const {
    const Slice mine = piece(node_);
    for (int node = 0; node < nodes_.count; ++node)
      group_.sources()[node] = partials(rank_at(node, index_)) + mine.begin * element_;
    reduce_to_node(mine, nodes_.count, divisor_of(task_.op, nodes_.count), true);
  }

  void spread() const {
    for (int distance = 1; distance < nodes_.count; ++distance) {
      const int node = (node_ + distance) % nodes_.count;
      const Slice theirs = piece(node);
      group_.sources()[0] = partials(rank_at(node, index_)) + theirs.begin * element_;
      reduce_to_node(theirs, 1, 1.0, false);  // a reduction of one source copies it
    }
  }

  void copy_out() const {
    copy_around(task_.destination + range_.begin * element_, buffer(group_.rank()), bytes(range_),
                slice_.begin * element_, slice_.end() * element_);
  }

  // Return the rank with index `index` on NUMA node `node`.
  int rank_at(int node, int index) const { return node * nodes_.ranks + index; }
  std::size_t bytes(const Slice& range) const { return range.count * element_; }
  // Return the piece of this rank's slice that NUMA node `node` combines. The rank with the same
  // index on that node does this.
  Slice piece(int node) const { return lines_of(slice_, node, nodes_.count, element_); }

  // Return the address at which this rank reads this chunk of the source of `rank`. The source of
  // another rank is in the shared arena or in that rank's staging buffer.
  const std::byte* source(int rank) const {
    if (!is_staged_) return group_.segment(rank).at(slot(rank).source_offset);
    return rank == group_.rank() ? task_.source + range_.begin * element_ : buffer(rank);
  }
  // Return the address at which a rank stores its partial sums, and later the results.
  std::byte* partials(int rank) const {
    return is_staged_ ? buffer(rank) : group_.segment(rank).at(slot(rank).destination_offset);
  }
  // Return the staging buffer of `rank` that has this chunk.
  std::byte* buffer(int rank) const {
    return buffer_of(group_.segment(rank), slot(rank).first_ticket + number_);
  }
  // Return the slot (the published record) of `rank` for this collective.
  const Slot& slot(int rank) const { return group_.segment(rank).slot(task_.sequence); }

  // Reduce `range.count` elements from each of the first `sources` pointers in group_.sources().
  // Store the result at position `range` for all ranks of this node:
  //   without staging buffers   in the destination of each rank
  //   with staging buffers      in this rank's destination, and in the buffer of each other rank,
  //                             which copies the result to its own destination. If
  //                             `is_read_by_counterparts` is true, also in this rank's buffer:
  //                             ranks of other nodes read it there
  void reduce_to_node(const Slice& range, int sources, double divisor,
                      bool is_read_by_counterparts) const {
    int results = 0;
    const auto add = [&](std::byte* to) { group_.destinations()[results++] = to; };
    for (int index = 0; index < nodes_.ranks; ++index)
      if (index != index_ || !is_staged_ || is_read_by_counterparts)
        add(partials(rank_at(node_, index)) + range.begin * element_);
    if (is_staged_) add(task_.destination + (range_.begin + range.begin) * element_);
    reduce_to_many(combine_of(task_.op), task_.dtype, group_.sources(), sources,
                   group_.destinations(), results, range.count, divisor);
  }

  Group& group_;
  const TaskHead& task_;
  std::uint64_t number_;
  bool is_staged_;
  std::size_t element_;
  Nodes nodes_;
  int node_, index_;  // the NUMA node of this rank, and its index in the node
  Slice range_;       // the elements of the operand in this chunk
  Slice slice_;       // the elements that this rank reduces in Sum
};

// Return the schedule (the acts and the number of chunks) for operands that pass through the
// staging buffers.
Schedule schedule_of(Context& context) {
  return {kNodesStaged, StagedChunks(context.group, context.task).number()};
}

// Do the work of one step, without waiting. The peers must have done the steps that it needs.
void carry_out(Context& context, Step step) { Chunk(context, step.chunk).carry_out(step.act); }

}  // namespace

bool NodesDirect::advance(Context& context) {
  return steps_.advance(context, {kNodesDirect, 1}, [&](Step step) { carry_out(context, step); });
}

void NodesStaged::start_early(Context& context) {
  steps_.start_early(context, schedule_of(context), [&](Step step) { carry_out(context, step); });
}

bool NodesStaged::advance(Context& context) {
  return steps_.advance(context, schedule_of(context),
                        [&](Step step) { carry_out(context, step); });
}

}  // namespace ngd::comm::shm
