// SPDX-License-Identifier: Apache-2.0
// The flat algorithm. The data are cut into n near-equal parts, one per rank. A rank reduces its
// part of every rank's source and stores the result to every rank's destination (reduce: to the
// root's). Each byte of a source is read once, and each byte of a destination is written once. The
// ranks synchronise twice: when all have arrived, and when all parts are done.
//
// The reducing rank writes its result to the destinations of the peers (push). If each peer copied
// the result from the reducing rank instead (pull), the ranks would synchronise a third time, and
// the all_reduce would be slower. All-reduce of float32 in place, 2 ranks, AMD EPYC 9005, medians
// of 5 alternating runs, in us:
//   bytes   64 Ki   1 Mi   4 Mi   16 Mi   64 Mi
//   push      3.4     35    136     527    2635
//   pull      4.7     49    430    1593    5949
//
// If every operand is in the shared arena, the ranks read and write the operands themselves.
// Otherwise the data pass through the staging buffers (staging.hpp) in chunks. Each chunk goes
// through three acts (schedule.hpp):
//   CopyIn    copy the elements that the peers need, from the source to this rank's buffer
//   Reduce    when all ranks have copied the chunk in: reduce this rank's part, from its source and
//             the peers' buffers. Store the result in this rank's destination (if it gets one), and
//             in the buffers of the peers that get it, in place of the elements that were reduced
//   CopyOut   when all ranks have reduced the chunk: copy the peers' parts from this rank's buffer
//             to its destination
// After CopyOut a rank may fill its buffer again, and need not wait for another flag. Reduce is the
// last act in which a peer reads or writes the buffer, and CopyOut begins when all ranks have done
// Reduce.
//
// Here too, push is faster: if the peers copied the results from the buffer of the reducing rank,
// an all_reduce would take longer. All-reduce of float32 in place from private memory, 2 ranks, AMD
// EPYC 9005, least of many runs, in us:
//   bytes   256 Ki   1 Mi   4 Mi
//   push       6.7     30    132
//   pull       7.7     34    161
#include "comm/shm/flat.hpp"

#include "comm/shm/copy.hpp"

namespace ngd::comm::shm {

namespace {

// One chunk of a collective whose data pass through the staging buffers, and the acts (copies and
// reduction) of this rank on the chunk.
class Chunk {
 public:
  Chunk(Context& context, std::uint64_t number)
      : group_(context.group),
        task_(context.task),
        number_(number),
        element_(size_of(task_.dtype)),
        range_(StagedChunks(group_, task_)[number]),
        part_(lines_of({0, range_.count}, group_.rank(), group_.size(), element_)) {}

  // copy_in(), reduce() and copy_out() carry out the acts CopyIn, Reduce and CopyOut. The head of
  // this file describes them.
  void copy_in() const {
    copy_around(buffer(group_.rank()), task_.source + range_.begin * element_,
                range_.count * element_, part_.begin * element_, part_.end() * element_);
  }

  void reduce() const {
    const std::size_t in_chunk = part_.begin * element_;
    const std::size_t in_whole = range_.begin * element_ + in_chunk;
    int results = 0;
    for (int r = 0; r < group_.size(); ++r) {
      const bool is_me = r == group_.rank();
      group_.sources()[r] = is_me ? task_.source + in_whole : buffer(r) + in_chunk;
      if (gets_result(task_, r))
        group_.destinations()[results++] =
            is_me ? task_.destination + in_whole : buffer(r) + in_chunk;
    }
    reduce_to_many(combine_of(task_.op), task_.dtype, group_.sources(), group_.size(),
                   group_.destinations(), results, part_.count,
                   divisor_of(task_.op, group_.size()));
  }

  void copy_out() const {
    if (!gets_result(task_, group_.rank())) return;
    copy_around(task_.destination + range_.begin * element_, buffer(group_.rank()),
                range_.count * element_, part_.begin * element_, part_.end() * element_);
  }

 private:
  // Return the staging buffer of `rank` for this chunk.
  std::byte* buffer(int rank) const {
    const Segment& segment = group_.segment(rank);
    return buffer_of(segment, segment.slot(task_.sequence).first_ticket + number_);
  }

  Group& group_;
  const TaskHead& task_;
  std::uint64_t number_;
  std::size_t element_;
  Slice range_;  // the elements of the operand in this chunk
  Slice part_;   // in this chunk, this rank reduces these elements
};

// Reduce this rank's part of all sources into the destinations, all in the shared arena.
void reduce_my_part(Context& context) {
  Group& group = context.group;
  const TaskHead& task = context.task;
  const std::size_t element = size_of(task.dtype);
  const Slice mine = lines_of({0, task.count}, group.rank(), group.size(), element);
  int results = 0;
  for (int r = 0; r < group.size(); ++r) {
    const Segment& segment = group.segment(r);
    const Slot& slot = segment.slot(task.sequence);
    group.sources()[r] = segment.at(slot.source_offset) + mine.begin * element;
    if (gets_result(task, r))
      group.destinations()[results++] = segment.at(slot.destination_offset) + mine.begin * element;
  }
  reduce_to_many(combine_of(task.op), task.dtype, group.sources(), group.size(),
                 group.destinations(), results, mine.count, divisor_of(task.op, group.size()));
}

Schedule schedule_of(Context& context) {
  return {kFlatStaged, StagedChunks(context.group, context.task).number()};
}

void carry_out(Context& context, Step step) {
  const Chunk chunk(context, step.chunk);
  if (step.act == Act::CopyIn) return chunk.copy_in();
  if (step.act == Act::Reduce) return chunk.reduce();
  chunk.copy_out();
}

}  // namespace

bool FlatDirect::advance(Context& context) {
  return steps_.advance(context, {kFlatDirect, 1}, [&](Step) { reduce_my_part(context); });
}

void FlatStaged::start_early(Context& context) {
  steps_.start_early(context, schedule_of(context), [&](Step step) { carry_out(context, step); });
}

bool FlatStaged::advance(Context& context) {
  return steps_.advance(context, schedule_of(context),
                        [&](Step step) { carry_out(context, step); });
}

}  // namespace ngd::comm::shm
