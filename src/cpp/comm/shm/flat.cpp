// SPDX-License-Identifier: Apache-2.0
// The flat all-reduce, and the reduce. The data are cut into one part a rank; a rank reduces its
// part of every rank's source and stores the result to every rank's destination (of a reduce: to
// the root's): each byte is read once and written once, in two hand-offs between ranks (all are
// there; all parts are done). Pushing the result is faster than letting the peers pull it, which
// takes a third hand-off; all-reduce of float32 in place, 2 ranks, AMD EPYC 9005, medians of 5
// alternating runs, in us:
//   bytes   64 Ki   1 Mi   4 Mi   16 Mi   64 Mi
//   push      3.4     35    136     527    2635
//   pull      4.7     49    430    1593    5949
//
// Where every operand lies in the shared lane this happens in place. Else the data pass through the
// lanes in chunks. A rank's chunk c goes through three acts:
//   copy in    what the peers need of my source, into my buffer;             then I raise in(c)
//   reduce     when all have raised in(c): my part, from my source and the peers' buffers, to my
//              destination and, over what I have read there, to the buffers of those who get the
//              result;                                                       then I raise
//              reduced(c)
//   copy out   when all have raised reduced(c): the peers' parts, from my own buffer
// in the order  in 0, in 1, reduce 0, out 0, in 2, reduce 1, out 1, in 3, ...
// A rank that has copied out a chunk has its buffer back without any further flag: the peers raise
// reduced(c) when they have read it and written to it for the last time.
// Results that the peers fetch from a buffer of mine instead took 20 % longer; all-reduce of
// float32 in place from private memory, 2 ranks, AMD EPYC 9005, least of many runs, in us:
//   bytes   256 Ki   1 Mi   4 Mi
//   push       6.7     30    132
//   fetch      7.7     34    161
// The chunks come from the last to the first: what was written last to the operands is likely to be
// in a cache still (64 MiB: 5.0 ms forwards, 4.7 ms backwards).
#include <algorithm>

#include "comm/shm/algorithms.hpp"
#include "comm/shm/copy.hpp"

namespace ngd::comm::shm {

namespace {

// With two ranks a chunk, its buffers and what is read and written for it fit the second-level
// cache; more ranks may have to take turns on a core, and then each hand-off costs more than that.
// All-reduce of float32 in place from private memory, AMD EPYC 9005 (2 cores), GB/s by chunk:
//   KiB                 64   128   256   512   1024
//   2 ranks, 16 MiB   12.0  15.1  17.7  16.7   12.9
//   4 ranks, 16 MiB                1.6   1.7    4.0
constexpr std::size_t kSmallChunk = 256 << 10, kLargeChunk = 1 << 20;
static_assert(kLargeChunk <= kBufferBytes && kBuffers >= 2);

std::size_t chunk_bytes(int ranks) noexcept { return ranks <= 2 ? kSmallChunk : kLargeChunk; }

enum Phase { kBegin, kCopyIn, kReduce, kCopyOut };

std::uint64_t in_mark(std::uint64_t chunk) { return chunk == 0 ? 1 : 2 * chunk; }
std::uint64_t reduced_mark(std::uint64_t chunk) { return 2 * chunk + 3; }

// Where one chunk of a task lies.
struct Chunk {
  Chunk(const Group& in_group, const Task& task, std::uint64_t of_number)
      : group(in_group), sequence(task.sequence), number(of_number), element(size_of(task.dtype)) {
    const Slice range = flat_chunk(group, task, number);
    first = range.begin;
    count = range.count;
  }

  Slice part(int rank) const { return lines_of({0, count}, rank, group.size(), element); }
  std::byte* buffer(int rank) const {
    const Segment& segment = group.segment(rank);
    return buffer_of(segment, segment.slot(sequence).lane + number);
  }

  const Group& group;
  std::uint64_t sequence;
  std::uint64_t number;
  std::size_t element;
  std::size_t first;  // element of the whole
  std::size_t count;
};

void copy_in(const Group& group, const Task& task, std::uint64_t number) {
  const Chunk chunk(group, task, number);
  const Slice mine = chunk.part(group.rank());
  copy_around(chunk.buffer(group.rank()), task.source + chunk.first * chunk.element,
              chunk.count * chunk.element, mine.begin * chunk.element, mine.end() * chunk.element);
}

// False where the buffer is not free.
bool copy_in_next(Group& group, Lane& lane, Task& task, std::uint64_t number) {
  const std::uint64_t ticket = task.lane + number;
  if (!lane.free(group, ticket)) return false;
  copy_in(group, task, number);
  lane.hold(ticket);
  group.raise_step(task, in_mark(number));
  return true;
}

void reduce_chunk(Group& group, const Task& task) {
  const Chunk chunk(group, task, task.chunk);
  const Slice mine = chunk.part(group.rank());
  const std::size_t offset = mine.begin * chunk.element;
  const std::size_t mine_at = chunk.first * chunk.element + offset;
  int results = 0;
  for (int r = 0; r < group.size(); ++r) {
    const bool me = r == group.rank();
    group.sources()[r] = me ? task.source + mine_at : chunk.buffer(r) + offset;
    if (task.kind == Kind::AllReduce || r == task.root)
      group.destinations()[results++] = me ? task.destination + mine_at : chunk.buffer(r) + offset;
  }
  reduce_to_many(combine_of(task.op), task.dtype, group.sources(), group.size(),
                 group.destinations(), results, mine.count, divisor_of(task.op, group.size()));
}

void copy_out(const Group& group, const Task& task) {
  if (!gets_result(group, task)) return;
  const Chunk chunk(group, task, task.chunk);
  const Slice mine = chunk.part(group.rank());
  copy_around(task.destination + chunk.first * chunk.element, chunk.buffer(group.rank()),
              chunk.count * chunk.element, mine.begin * chunk.element, mine.end() * chunk.element);
}

}  // namespace

// Up to kInlineBytes this is the fastest. All-reduce of float32, 2 ranks, AMD EPYC 9005, in us:
//   bytes    inline   in the shared lane   staged
//     512      0.19                 0.26     0.34
//    2048      0.26                 0.28     0.38
//    4096      0.62                 0.31     0.43
//    8192      0.90                 0.36     0.68
void combine_inline(Group& group, const Task& task) {
  if (task.count == 0 || !gets_result(group, task)) return;
  for (int r = 0; r < group.size(); ++r)
    group.sources()[r] = inline_payload(group.segment(r), task.sequence, task.bytes(), 0);
  reduce(combine_of(task.op), task.dtype, group.sources(), group.size(), task.destination,
         task.count, divisor_of(task.op, group.size()));
}

bool advance_flat_direct(Group& group, Task& task) {
  if (task.phase == kBegin) {
    const std::size_t element = size_of(task.dtype);
    const Slice mine = lines_of({0, task.count}, group.rank(), group.size(), element);
    int results = 0;
    for (int r = 0; r < group.size(); ++r) {
      const Segment& segment = group.segment(r);
      const Slot& slot = segment.slot(task.sequence);
      group.sources()[r] = segment.at(slot.source_offset) + mine.begin * element;
      if (task.kind == Kind::AllReduce || r == task.root)
        group.destinations()[results++] =
            segment.at(slot.destination_offset) + mine.begin * element;
    }
    reduce_to_many(combine_of(task.op), task.dtype, group.sources(), group.size(),
                   group.destinations(), results, mine.count, divisor_of(task.op, group.size()));
    group.raise_step(task, 1);
    task.need = group.all_step(task, 1);
    task.phase = kReduce;
  }
  return group.met(task.need);
}

std::uint64_t flat_chunks(const Group& group, const Task& task) noexcept {
  const std::size_t elements = chunk_bytes(group.size()) / size_of(task.dtype);
  return (task.count + elements - 1) / elements;
}

Slice flat_chunk(const Group& group, const Task& task, std::uint64_t number) noexcept {
  const std::size_t whole = chunk_bytes(group.size()) / size_of(task.dtype);
  const std::size_t first = (flat_chunks(group, task) - 1 - number) * whole;
  return {first, std::min<std::size_t>(whole, task.count - first)};
}

bool begin_flat_staged(Group& group, Lane& lane, Task& task) {
  if (!copy_in_next(group, lane, task, 0)) return false;
  task.phase = kCopyIn;
  return true;
}

bool advance_flat_staged(Group& group, Lane& lane, Task& task) {
  const std::uint64_t chunks = flat_chunks(group, task);
  const auto busy = [&](std::uint64_t number) {
    task.need = lane.guard(task.lane + number);
    return false;
  };
  if (task.phase == kBegin && !begin_flat_staged(group, lane, task)) return busy(0);
  while (group.met(task.need)) {
    if (task.phase == kCopyIn) {
      const std::uint64_t next = task.chunk + 1;
      if (next < chunks && !copy_in_next(group, lane, task, next)) return busy(next);
      task.lane_done = next >= chunks;
      task.need = group.all_step(task, in_mark(task.chunk));
      task.phase = kReduce;
    } else if (task.phase == kReduce) {
      reduce_chunk(group, task);
      group.raise_step(task, reduced_mark(task.chunk));
      task.need = group.all_step(task, reduced_mark(task.chunk));
      task.phase = kCopyOut;
    } else {
      copy_out(group, task);
      lane.give_back(task.lane + task.chunk);
      if (++task.chunk == chunks) return true;
      task.phase = kCopyIn;
    }
  }
  return false;
}

}  // namespace ngd::comm::shm
