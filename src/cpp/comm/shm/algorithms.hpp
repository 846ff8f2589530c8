// SPDX-License-Identifier: Apache-2.0
// The algorithms: each advances a task, all of whose ranks have arrived, until its need is not met,
// and returns whether it is complete. None ever waits.
//
// What a task's destination holds is whole, and no peer reads or writes its buffers any more, once
// it is complete on this rank.
#pragma once

#include "comm/shm/group.hpp"
#include "comm/shm/lane.hpp"

namespace ngd::comm::shm {

// Where a rank's payload lies that rides beside its flag: after its counts, if it gave any.
inline std::byte* inline_payload(const Segment& segment, std::uint64_t sequence, std::size_t bytes,
                                 std::size_t counts_bytes) noexcept {
  if (counts_bytes == 0 && bytes <= sizeof(Slot::tiny)) return segment.slot(sequence).tiny;
  return segment.payload(sequence) + counts_bytes;
}

// Of an all_reduce or a reduce.
inline bool gets_result(const Group& group, const Task& task) noexcept {
  return task.kind == Kind::AllReduce || task.root == group.rank();
}

// Every payload rides beside its flag: each rank that gets the result reduces all of them itself,
// in tree order.
void combine_inline(Group& group, const Task& task);

// Flat: each rank reduces its part of every rank's source, in tree order, for all ranks or, where
// the kind is reduce, for the root.
bool advance_flat_direct(Group& group, Task& task);
// Copies my first chunk into the staging area; may be called before the peers have arrived. False
// where it is not free.
bool begin_flat_staged(Group& group, Lane& lane, Task& task);
bool advance_flat_staged(Group& group, Lane& lane, Task& task);
// How many chunks a staged task has, and which elements are in the one of a number.
std::uint64_t flat_chunks(const Group& group, const Task& task) noexcept;
Slice flat_chunk(const Group& group, const Task& task, std::uint64_t number) noexcept;

// Node by node: flat's result where the ranks sit on several memory nodes, by way of partial sums.
inline bool goes_by_nodes(const Group& group, const Task& task) noexcept {
  return task.kind == Kind::AllReduce && task.algorithm == Algorithm::Flat &&
         group.nodes().count > 1 && !is_half(task.dtype);
}
bool begin_nodes_staged(Group& group, Lane& lane, Task& task);  // as begin_flat_staged
bool advance_nodes(Group& group, Lane& lane, Task& task);

// Ring: the sum travels around, part by part, and then the result.
bool advance_ring(Group& group, Task& task);

// All other kinds. plan: what I give and take, as far as my own call says it. meet: what the
// others' calls add.
void plan_exchange(const Group& group, Task& task, const Collective& collective);
void meet_exchange(Group& group, Task& task);
bool advance_exchange(Group& group, Lane& lane, Task& task);

// Together: a large broadcast, or an all_to_all in place, where all operands are shared: each rank
// does a part of the work of all. May it be, by the call of one rank, or by all ranks' calls?
bool may_be_together(const Group& group, const Task& task, int rank) noexcept;
bool all_may_be_together(const Group& group, const Task& task) noexcept;
bool advance_together(Group& group, Task& task);

}  // namespace ngd::comm::shm
