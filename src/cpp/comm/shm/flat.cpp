// SPDX-License-Identifier: Apache-2.0
// The flat all-reduce. The data are cut into one part a rank; a rank reduces its part of every
// rank's source and stores the result to every rank's destination: each byte is read once and
// written once, in two hand-offs between ranks (all are there; all parts are done). Pushing the
// result is faster than letting the peers pull it, which takes a third hand-off; all-reduce of
// float32 in place, 2 ranks, AMD EPYC 9005, medians of 5 alternating runs, in us:
//   bytes   64 Ki   1 Mi   4 Mi   16 Mi   64 Mi
//   push      3.4     35    136     527    2635
//   pull      4.7     49    430    1593    5949
//
// Where every operand lies in the shared lane this happens in place. Else the data pass through the
// staging areas in chunks, double buffered. A rank's chunk c goes through three acts:
//   copy in    what the peers need of my source, into my staging;            then I raise in(c)
//   reduce     when all have raised in(c): my part, from my source and the peers' staging, to my
//              destination and to my staging;                                then I raise
//              reduced(c)
//   copy out   when all have raised reduced(c): the peers' parts, from their staging
// in the order  in 0, in 1, reduce 0, out 0, in 2, reduce 1, out 1, in 3, ...
// A buffer of the staging area is free for chunk c + 2 without any further flag: who copies in c +
// 2 has copied out c, so all have reduced c; and who has raised in(c + 2) has copied out c. That
// holds across consecutive flat tasks, too: chunks are counted through (Task::lane_chunk).
#include <algorithm>
#include <cstring>

#include "comm/shm/algorithms.hpp"

namespace ngd::comm::shm {

namespace {

constexpr std::size_t kChunkBytes = 512 << 10;
// A part, the rounding of its ends to lines included.
constexpr std::size_t kResultBytes = kChunkBytes / 2 + 2 * kLine;
static_assert(2 * (kChunkBytes + kResultBytes) <= kStagingBytes);

enum Phase { kBegin, kCopyIn, kReduce, kCopyOut };

std::uint64_t in_mark(std::uint64_t chunk) { return chunk == 0 ? 1 : 2 * chunk; }
std::uint64_t reduced_mark(std::uint64_t chunk) { return 2 * chunk + 3; }

// Where one chunk of a task lies.
struct Chunk {
  Chunk(const Group& group, const Task& task, std::uint64_t number)
      : element(size_of(task.dtype)),
        first(number * (kChunkBytes / element)),
        count(std::min<std::size_t>(kChunkBytes / element, task.count - first)),
        parity((task.lane_chunk + number) % 2),
        ranks(group.size()) {}

  Range part(int rank) const { return part_of(count, rank, ranks, element); }
  std::byte* in(const Group& group, int rank) const {
    return group.segment(rank).staging() + parity * kChunkBytes;
  }
  std::byte* result(const Group& group, int rank) const {
    return group.segment(rank).staging() + 2 * kChunkBytes + parity * kResultBytes;
  }

  std::size_t element;
  std::size_t first;  // element of the whole
  std::size_t count;
  std::uint64_t parity;
  int ranks;
};

void copy_in(const Group& group, const Task& task, std::uint64_t number) {
  const Chunk chunk(group, task, number);
  const std::byte* from = task.source + chunk.first * chunk.element;
  std::byte* to = chunk.in(group, group.rank());
  const Range mine = chunk.part(group.rank());
  std::memcpy(to, from, mine.begin * chunk.element);
  std::memcpy(to + mine.end * chunk.element, from + mine.end * chunk.element,
              (chunk.count - mine.end) * chunk.element);
}

void reduce_chunk(Group& group, const Task& task) {
  const Chunk chunk(group, task, task.chunk);
  const Range mine = chunk.part(group.rank());
  const std::size_t offset = mine.begin * chunk.element;
  for (int r = 0; r < group.size(); ++r) group.sources()[r] = chunk.in(group, r) + offset;
  const std::size_t mine_at = (chunk.first + mine.begin) * chunk.element;
  group.sources()[group.rank()] = task.source + mine_at;
  group.destinations()[0] = task.destination + mine_at;
  group.destinations()[1] = chunk.result(group, group.rank());
  reduce_to_many(combine_of(task.op), task.dtype, group.sources(), group.size(),
                 group.destinations(), 2, mine.count(), divisor_of(task, group.size()));
}

void copy_out(const Group& group, const Task& task) {
  const Chunk chunk(group, task, task.chunk);
  for (int r = 0; r < group.size(); ++r) {
    if (r == group.rank()) continue;
    const Range part = chunk.part(r);
    std::memcpy(task.destination + (chunk.first + part.begin) * chunk.element,
                chunk.result(group, r), part.count() * chunk.element);
  }
}

}  // namespace

// Up to kInlineBytes this is the fastest. All-reduce of float32, 2 ranks, AMD EPYC 9005, in us:
//   bytes    inline   in the shared lane   staged
//     512      0.19                 0.26     0.34
//    2048      0.26                 0.28     0.38
//    4096      0.62                 0.31     0.43
//    8192      0.90                 0.36     0.68
void combine_inline(Group& group, const Task& task) {
  if (task.count == 0) return;
  const bool tiny = task.bytes() <= sizeof(Slot::tiny);
  const auto payload = [&](int rank) {
    const Segment& segment = group.segment(rank);
    return tiny ? segment.slot(task.sequence).tiny : segment.payload(task.sequence);
  };
  if (task.kind == Kind::Broadcast) {
    std::memcpy(task.destination, payload(task.root), task.bytes());
    return;
  }
  for (int r = 0; r < group.size(); ++r) group.sources()[r] = payload(r);
  reduce(combine_of(task.op), task.dtype, group.sources(), group.size(), task.destination,
         task.count, divisor_of(task, group.size()));
}

bool advance_flat_direct(Group& group, Task& task) {
  if (task.phase == kBegin) {
    const std::size_t element = size_of(task.dtype);
    const Range mine = part_of(task.count, group.rank(), group.size(), element);
    for (int r = 0; r < group.size(); ++r) {
      const Slot& slot = group.segment(r).slot(task.sequence);
      group.sources()[r] = group.segment(r).at(slot.source_offset) + mine.begin * element;
      group.destinations()[r] = group.segment(r).at(slot.destination_offset) + mine.begin * element;
    }
    reduce_to_many(combine_of(task.op), task.dtype, group.sources(), group.size(),
                   group.destinations(), group.size(), mine.count(),
                   divisor_of(task, group.size()));
    group.raise_step(task, 1);
    task.need = group.all(Need::Flag::Step, 1);
    task.phase = kReduce;
  }
  return group.met(task);
}

std::uint64_t flat_chunks(const Task& task) noexcept {
  const std::size_t elements = kChunkBytes / size_of(task.dtype);
  return (task.count + elements - 1) / elements;
}

void begin_flat_staged(Group& group, Task& task) {
  copy_in(group, task, 0);
  group.raise_step(task, in_mark(0));
  task.phase = kCopyIn;
}

bool advance_flat_staged(Group& group, Task& task) {
  if (task.phase == kBegin) begin_flat_staged(group, task);
  const std::uint64_t chunks = flat_chunks(task);
  while (group.met(task)) {
    if (task.phase == kCopyIn) {
      if (task.chunk + 1 < chunks) {
        copy_in(group, task, task.chunk + 1);
        group.raise_step(task, in_mark(task.chunk + 1));
      }
      task.need = group.all(Need::Flag::Step, in_mark(task.chunk));
      task.phase = kReduce;
    } else if (task.phase == kReduce) {
      reduce_chunk(group, task);
      group.raise_step(task, reduced_mark(task.chunk));
      task.need = group.all(Need::Flag::Step, reduced_mark(task.chunk));
      task.phase = kCopyOut;
    } else {
      copy_out(group, task);
      if (++task.chunk == chunks) return true;
      task.phase = kCopyIn;
    }
  }
  return false;
}

}  // namespace ngd::comm::shm
