// SPDX-License-Identifier: Apache-2.0
// The ring all-reduce (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
// workstations", 2009, section 3). Rank r reads only from its left neighbour, r - 1. The data are
// cut into one part a rank; all indices are modulo the number of ranks n.
//   reduce, step s = 0..n-2:  I add my own part r-s-1 to what the left neighbour has of it so far;
//                             after the last step I hold the whole sum of part r+1
//   gather, step t = 0..n-2:  I copy the whole sum of part r-t from the left neighbour
// A part is so summed in ring order, beginning with its own rank: not the canonical order, but the
// same for all ranks. Two-byte floats travel as float32 and are rounded once, at the end.
//
// Where every operand lies in the shared lane the partial sums stand in the destinations. Else, and
// for two-byte floats, they stand in the staging areas, chunk by chunk. No rank overwrites what its
// right neighbour has still to read: a part's whole sum has passed through the right neighbour
// before it comes back to me; a new chunk, and the end of the task, wait for its last step.
#include <algorithm>
#include <cstring>

#include "comm/shm/algorithms.hpp"

namespace ngd::comm::shm {

namespace {

constexpr std::size_t kChunkBytes = 1 << 20;
static_assert(kChunkBytes <= kStagingBytes);

enum Phase { kBegin, kReduce, kGather };

class Ring {
 public:
  Ring(Group& group, Task& task)
      : group_(group),
        task_(task),
        ranks_(group.size()),
        left_((group.rank() + ranks_ - 1) % ranks_),
        right_((group.rank() + 1) % ranks_),
        sum_dtype_(is_half(task.dtype) ? DType::F32 : task.dtype),
        element_(size_of(task.dtype)),
        sum_element_(size_of(sum_dtype_)),
        chunk_elements_(task.staged ? kChunkBytes / sum_element_ : task.count),
        chunks_(task.count == 0 ? 0 : (task.count + chunk_elements_ - 1) / chunk_elements_) {}

  bool advance() {
    while (group_.met(task_.need)) {
      if (task_.chunk == chunks_) return true;
      if (task_.phase == kBegin) {
        begin_chunk();
      } else if (task_.phase == kReduce) {
        reduce_step();
      } else {
        gather_step();
      }
    }
    return false;
  }

 private:
  // A chunk's first step is to be begun; then come its n - 1 reducing and n - 1 gathering ones.
  std::uint64_t steps_a_chunk() const { return 2 * static_cast<std::uint64_t>(ranks_ - 1) + 1; }

  Slice part(int number) const {
    const std::size_t first = task_.chunk * chunk_elements_;
    const std::size_t count = std::min<std::size_t>(chunk_elements_, task_.count - first);
    return lines_of({first, count}, (number + 2 * ranks_) % ranks_, ranks_, sum_element_);
  }
  std::byte* sums(int rank, const Slice& range) const {
    const Segment& segment = group_.segment(rank);
    if (task_.staged)
      return segment.staging() + (range.begin - task_.chunk * chunk_elements_) * sum_element_;
    return segment.at(segment.slot(task_.sequence).destination_offset) + range.begin * element_;
  }
  const std::byte* source(const Slice& range) const {
    return task_.source + range.begin * element_;
  }
  std::byte* destination(const Slice& range) const {
    return task_.destination + range.begin * element_;
  }

  void finish_step() {
    const std::uint64_t step =
        task_.chunk * steps_a_chunk() + 1 +
        static_cast<std::uint64_t>((task_.phase == kGather ? ranks_ - 1 : 0) + task_.round);
    group_.raise_step(task_, step);
    task_.need = group_.one_step(task_, left_, step);
  }

  void begin_chunk() {
    if (task_.staged) load(part(group_.rank()));
    task_.phase = kReduce;
    task_.round = 0;
    finish_step();
  }

  // My own part of a staged chunk, as it begins to travel.
  void load(const Slice& range) {
    std::byte* mine = sums(group_.rank(), range);
    if (is_half(task_.dtype))
      widen(task_.dtype, source(range), reinterpret_cast<float*>(mine), range.count);
    else
      std::memcpy(mine, source(range), range.count * element_);
  }

  void reduce_step() {
    const Slice range = part(group_.rank() - task_.round - 1);
    const bool last = task_.round == ranks_ - 2;
    std::byte* mine = sums(group_.rank(), range);
    const bool untouched = !task_.staged && task_.round == 0;  // the left's part is its source's
    const Segment& left = group_.segment(left_);
    const std::byte* theirs =
        untouched ? left.at(left.slot(task_.sequence).source_offset) + range.begin * element_
                  : sums(left_, range);
    if (is_half(task_.dtype)) load(range);
    const void* operands[] = {theirs, is_half(task_.dtype) ? mine : source(range)};
    reduce(combine_of(task_.op), sum_dtype_, operands, 2, mine, range.count,
           last ? divisor_of(task_.op, ranks_) : 1.0);
    if (last) store(range);
    ++task_.round;
    finish_step();
    if (last) {
      task_.phase = kGather;
      task_.round = 0;
    }
  }

  void gather_step() {
    const Slice range = part(group_.rank() - task_.round);
    std::memcpy(sums(group_.rank(), range), sums(left_, range), range.count * sum_element_);
    store(range);
    ++task_.round;
    if (task_.round < ranks_ - 1) return finish_step();
    finish_step();
    ++task_.chunk;
    task_.phase = kBegin;
    task_.need = group_.one_step(task_, right_, task_.chunk * steps_a_chunk());
  }

  // A whole sum of a staged chunk, into the destination.
  void store(const Slice& range) {
    if (!task_.staged) return;
    const std::byte* sum = sums(group_.rank(), range);
    if (is_half(task_.dtype))
      narrow(task_.dtype, reinterpret_cast<const float*>(sum), destination(range), range.count);
    else
      std::memcpy(destination(range), sum, range.count * element_);
  }

  Group& group_;
  Task& task_;
  int ranks_;
  int left_, right_;
  DType sum_dtype_;
  std::size_t element_, sum_element_;
  std::size_t chunk_elements_;
  std::uint64_t chunks_;
};

}  // namespace

bool advance_ring(Group& group, Task& task) { return Ring(group, task).advance(); }

}  // namespace ngd::comm::shm
