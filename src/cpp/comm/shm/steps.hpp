// SPDX-License-Identifier: Apache-2.0
// Carries out the steps of a collective, in the order of schedule.hpp. Before a step, this rank
// waits until its peers have done the steps that it needs. Afterwards, it raises its flag.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/bits.hpp"
#include "comm/shm/context.hpp"
#include "comm/shm/schedule.hpp"

namespace ngd::comm::shm {

class Steps {
 public:
  // Carry out the first step before all ranks have arrived: copy chunk 0 into its staging buffer.
  // Do nothing if chunk 0 is copied already. If the buffer is not free, do nothing either: a later
  // call, or advance(), copies chunk 0 when the buffer is free.
  template <class CarryOut>
  void start_early(Context& context, const Schedule& schedule, CarryOut&& carry_out) {
    if (next_ == 1 && copy_in(context, schedule, 0, carry_out)) ++next_;
  }

  // Carry out steps until one must wait. carry_out(step) does the work of a step. Return true if
  // the collective is complete on this rank.
  template <class CarryOut>
  bool advance(Context& context, const Schedule& schedule, CarryOut&& carry_out) {
    Group& group = context.group;
    TaskHead& task = context.task;
    while (group.met(task.need)) {
      if (next_ > schedule.last()) return true;
      const Step step = schedule.at(next_);
      if (step.act == Act::CopyIn) {
        if (!copy_in(context, schedule, step.chunk, carry_out)) {
          task.need = context.staging.guard(task.staging.first + step.chunk);
          return false;
        }
      } else {
        carry_out(step);
        if (step.act == Act::CopyOut)
          context.staging.give_back(task.staging.first + step.chunk);
        else
          group.raise_step(task.sequence, next_);
      }
      ++next_;
      const std::uint64_t awaited = schedule.awaited_before(next_);
      task.need = awaited == 0 ? Need{} : group.all_step(task.sequence, awaited);
    }
    return false;
  }

 private:
  // Carry out a step CopyIn: copy a chunk from the source to its staging buffer, raise the flag
  // Slot::step, and return true. If the buffer is not free, only return false. The last CopyIn is
  // empty (`chunk` is chunks()): only note that this collective fills no more buffers.
  template <class CarryOut>
  bool copy_in(Context& context, const Schedule& schedule, std::uint64_t chunk,
               CarryOut&& carry_out) {
    TaskHead& task = context.task;
    if (chunk == schedule.chunks()) {
      task.staging.has_ended = true;
      return true;
    }
    const std::uint64_t ticket = task.staging.first + chunk;
    if (!context.staging.is_free(context.group, ticket)) return false;
    carry_out(Step{Act::CopyIn, chunk});
    context.staging.hold(ticket);
    context.group.raise_step(task.sequence, next_);
    return true;
  }

  std::uint64_t next_ = 1;  // the number of the next step
};

// The chunks of an all_reduce or reduce whose data pass through the staging buffers. A chunk has
// 256 KiB in a group of one or two ranks, and 1 MiB in a larger group.
//
// With two ranks, a chunk of 256 KiB, its buffers and its operands fit the second-level cache. More
// ranks may have to share a core, and then a synchronisation costs more than cache misses. The
// table has the speed in GB/s of an all-reduce of 16 MiB of float32, in place in private memory,
// for chunks of 64 KiB to 1 MiB. The machine is an AMD EPYC 9005 with 2 cores, which 4 ranks share.
// For 4 ranks, only chunks of 256 KiB or more were measured.
//   KiB                 64   128   256   512   1024
//   2 ranks, 16 MiB   12.0  15.1  17.7  16.7   12.9
//   4 ranks, 16 MiB                1.6   1.7    4.0
class StagedChunks {
 public:
  StagedChunks(const Group& group, const TaskHead& task) noexcept
      : count_(task.count),
        elements_((group.size() <= 2 ? kSmallBytes : kLargeBytes) / size_of(task.dtype)) {}

  // Return the number of chunks.
  std::uint64_t number() const noexcept { return divide_up(count_, elements_); }
  // Return the elements of a chunk. Chunk 0 is the end of the array, and the last chunk is its
  // beginning: the data that were written last are likely to be in a cache still. An all_reduce of
  // 64 MiB took 4.7 ms in this order, and 5.0 ms in the opposite one.
  Slice operator[](std::uint64_t chunk) const noexcept {
    const std::size_t first = (number() - 1 - chunk) * elements_;
    return {first, std::min<std::size_t>(elements_, count_ - first)};
  }

 private:
  static constexpr std::size_t kSmallBytes = 256 << 10, kLargeBytes = 1 << 20;
  static_assert(kLargeBytes <= kBufferBytes && kBuffers >= 2);

  std::uint64_t count_;
  std::size_t elements_;  // the number of elements of one chunk
};

}  // namespace ngd::comm::shm
