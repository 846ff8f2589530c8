// SPDX-License-Identifier: Apache-2.0
// The ring algorithm (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
// workstations", 2009, section 3). Rank r reads only from its left neighbour, r - 1. The data are
// cut into n near-equal parts, one per rank. All indices are modulo n, the number of ranks. There
// are two phases:
//   Reduce, round s = 0..n-2:  add two operands for part r-s-1: the left neighbour's partial sum
//                              and this rank's source. The result is this rank's partial sum of
//                              the part. After the last round, rank r has the whole sum of part
//                              r+1
//   Gather, round t = 0..n-2:  copy the whole sum of part r-t from the left neighbour
// So the sum of part p begins with the source of rank p and goes around the ring. This is not the
// canonical order, but the same on all ranks. 16-bit floats travel as float32 and are rounded once,
// at the end.
//
// If every operand is in the shared arena, the partial sums are stored in the destinations.
// Otherwise, and for 16-bit floats, they are stored in the staging areas, chunk by chunk.
//
// In Gather, a rank overwrites its partial sum of a part with the whole sum of the part. The right
// neighbour does not need this partial sum any more: the whole sum includes the source of the right
// neighbour, which has read the partial sum to add its source. A rank begins a new chunk, or ends
// the task, only after the right neighbour has done its last round of the chunk before.
#include "comm/shm/ring.hpp"

#include <algorithm>
#include <cstring>

#include "base/bits.hpp"

namespace ngd::comm::shm {

namespace {

constexpr std::size_t kChunkBytes = 1 << 20;
static_assert(kChunkBytes <= kStagingBytes);

}  // namespace

class Ring::Pass {
 public:
  Pass(Context& context, Ring& state)
      : group_(context.group),
        task_(context.task),
        state_(state),
        is_staged_(task_.staging.is_needed),
        ranks_(group_.size()),
        left_((group_.rank() + ranks_ - 1) % ranks_),
        right_((group_.rank() + 1) % ranks_),
        sum_dtype_(is_half(task_.dtype) ? DType::F32 : task_.dtype),
        element_(size_of(task_.dtype)),
        sum_element_(size_of(sum_dtype_)),
        chunk_elements_(is_staged_ ? kChunkBytes / sum_element_ : task_.count),
        chunks_(task_.count == 0 ? 0 : divide_up(task_.count, chunk_elements_)) {}

  // Carry out steps until one must wait for a neighbour. Return true if the collective is complete
  // on this rank.
  bool advance() {
    while (group_.met(task_.need)) {
      if (state_.chunk_ == chunks_) return true;
      if (state_.phase_ == Phase::Begin) {
        begin_chunk();
      } else if (state_.phase_ == Phase::Reduce) {
        reduce_step();
      } else {
        gather_step();
      }
    }
    return false;
  }

 private:
  // Return the number of steps of one chunk, for n ranks: one step that makes this rank's first
  // part readable for its right neighbour (rank + 1), then n - 1 rounds of the phase Reduce and
  // n - 1 rounds of the phase Gather.
  std::uint64_t steps_per_chunk() const { return 2 * static_cast<std::uint64_t>(ranks_ - 1) + 1; }

  // Return one of the n parts of the current chunk (n ranks), as a range of elements of the whole
  // operand. `number`: the index of the part, modulo n; at least -2n.
  Slice part(int number) const {
    const std::size_t first = state_.chunk_ * chunk_elements_;
    const std::size_t count = std::min<std::size_t>(chunk_elements_, task_.count - first);
    return lines_of({first, count}, (number + 2 * ranks_) % ranks_, ranks_, sum_element_);
  }
  // Return the address at which `rank` stores its partial sums of the elements in `range`, and
  // later the whole sums: its staging area or its destination.
  std::byte* sums(int rank, const Slice& range) const {
    const Segment& segment = group_.segment(rank);
    if (is_staged_)
      return segment.staging() + (range.begin - state_.chunk_ * chunk_elements_) * sum_element_;
    return segment.at(segment.slot(task_.sequence).destination_offset) + range.begin * element_;
  }
  // source() and destination() return the addresses of `range` in the operands of this rank.
  const std::byte* source(const Slice& range) const {
    return task_.source + range.begin * element_;
  }
  std::byte* destination(const Slice& range) const {
    return task_.destination + range.begin * element_;
  }

  // Raise this rank's flag to the number of the step that it has done. The next step waits until
  // the left neighbour has done the same step.
  void finish_step() {
    const std::uint64_t step =
        state_.chunk_ * steps_per_chunk() + 1 +
        static_cast<std::uint64_t>((state_.phase_ == Phase::Gather ? ranks_ - 1 : 0) +
                                   state_.round_);
    group_.raise_step(task_.sequence, step);
    task_.need = group_.one_step(task_.sequence, left_, step);
  }

  // Do the first step of a chunk, which is cut into one part per rank: make part r, on rank r,
  // readable for the right neighbour.
  void begin_chunk() {
    if (is_staged_) load(part(group_.rank()));
    state_.phase_ = Phase::Reduce;
    state_.round_ = 0;
    finish_step();
  }

  // Copy the elements in `range` of this rank's source to its memory of partial sums. 16-bit floats
  // are widened to float32.
  void load(const Slice& range) {
    std::byte* mine = sums(group_.rank(), range);
    if (is_half(task_.dtype))
      widen(task_.dtype, source(range), reinterpret_cast<float*>(mine), range.count);
    else
      std::memcpy(mine, source(range), range.count * element_);
  }

  // Do the current round of the phase Reduce. The last round also stores the whole sum.
  void reduce_step() {
    const Slice range = part(group_.rank() - state_.round_ - 1);
    const bool is_last = state_.round_ == ranks_ - 2;
    std::byte* mine = sums(group_.rank(), range);
    // In round 0 without staging buffers, the left neighbour has not stored a partial sum yet: read
    // its source instead.
    const bool is_in_source = !is_staged_ && state_.round_ == 0;
    const Segment& left_segment = group_.segment(left_);
    const std::byte* theirs =
        is_in_source ? left_segment.at(left_segment.slot(task_.sequence).source_offset) +
                           range.begin * element_
                     : sums(left_, range);
    if (is_half(task_.dtype)) load(range);
    const void* operands[] = {theirs, is_half(task_.dtype) ? mine : source(range)};
    reduce(combine_of(task_.op), sum_dtype_, operands, 2, mine, range.count,
           is_last ? divisor_of(task_.op, ranks_) : 1.0);
    if (is_last) store(range);
    ++state_.round_;
    finish_step();
    if (is_last) {
      state_.phase_ = Phase::Gather;
      state_.round_ = 0;
    }
  }

  // Do the current round of the phase Gather. The last round ends the chunk.
  void gather_step() {
    const Slice range = part(group_.rank() - state_.round_);
    std::memcpy(sums(group_.rank(), range), sums(left_, range), range.count * sum_element_);
    store(range);
    ++state_.round_;
    if (state_.round_ < ranks_ - 1) return finish_step();
    finish_step();
    ++state_.chunk_;
    state_.phase_ = Phase::Begin;
    task_.need = group_.one_step(task_.sequence, right_, state_.chunk_ * steps_per_chunk());
  }

  // Copy the sums over all ranks of the elements in `range` from the staging memory to this rank's
  // destination. If the operands are 16-bit floats, round the sums from float32 to 16 bits. Without
  // staging buffers, the sums are in the destination already: do nothing.
  void store(const Slice& range) {
    if (!is_staged_) return;
    const std::byte* sum = sums(group_.rank(), range);
    if (is_half(task_.dtype))
      narrow(task_.dtype, reinterpret_cast<const float*>(sum), destination(range), range.count);
    else
      std::memcpy(destination(range), sum, range.count * element_);
  }

  Group& group_;
  TaskHead& task_;
  Ring& state_;
  bool is_staged_;
  int ranks_;
  int left_, right_;
  DType sum_dtype_;
  std::size_t element_, sum_element_;
  std::size_t chunk_elements_;
  std::uint64_t chunks_;
};

bool Ring::advance(Context& context) { return Pass(context, *this).advance(); }

}  // namespace ngd::comm::shm
