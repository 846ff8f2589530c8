// SPDX-License-Identifier: Apache-2.0
// The order in which a rank carries out the acts of an algorithm.
//
// The data are cut into chunks, and each chunk goes through the same acts. An act on a chunk is a
// step. Steps are numbered from 1, and all ranks have the same ones. After a step, a rank raises
// its flag Slot::step to the step's number, so the flag of a rank shows which steps it has done.
//
// If the data pass through the staging buffers, the first act is CopyIn and the last act is
// CopyOut. A rank copies in one chunk ahead, while its peers still work on the chunk before. For
// the acts {CopyIn, Reduce, CopyOut} the steps are
//   CopyIn 0, CopyIn 1, Reduce 0, CopyOut 0, CopyIn 2, Reduce 1, CopyOut 1, ...
// For the last chunk there is nothing to copy in ahead: that step is empty.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ngd::comm::shm {

enum class Act : std::uint8_t {
  CopyIn,   // copy from the source to the staging buffer. Waits until the buffer is free
  Move,     // copy or swap 1/n of the data of all n ranks (cooperative.cpp)
  Reduce,   // reduce 1/n of the elements, from the sources of all n ranks (flat.cpp)
  Sum,      // reduce 1/m of the elements, from the sources of the m ranks of a node (nodes.cpp)
  Combine,  // reduce the results that all NUMA nodes have computed in Sum (nodes.cpp)
  Spread,   // copy the results that other NUMA nodes have computed in Combine (nodes.cpp)
  CopyOut   // copy from the staging buffer to the destination. Raises no flag: no rank waits for it
};

// The acts (kinds of steps) of each algorithm, in order.
inline constexpr Act kFlatDirect[] = {Act::Reduce};
inline constexpr Act kFlatStaged[] = {Act::CopyIn, Act::Reduce, Act::CopyOut};
inline constexpr Act kNodesDirect[] = {Act::Sum, Act::Combine, Act::Spread};
inline constexpr Act kNodesStaged[] = {Act::CopyIn, Act::Sum, Act::Combine, Act::Spread,
                                       Act::CopyOut};
inline constexpr Act kCooperative[] = {Act::Move};

struct Step {
  Act act;
  std::uint64_t chunk;
};

class Schedule {
 public:
  template <std::size_t n>
  constexpr Schedule(const Act (&acts)[n], std::uint64_t chunks) noexcept
      : acts_(acts), num_acts_(n), chunks_(chunks), num_ahead_(acts[0] == Act::CopyIn ? 1 : 0) {}

  constexpr std::uint64_t chunks() const noexcept { return chunks_; }
  // Return the number of the last step, which is the number of all steps. There is one step per act
  // and chunk. If the first act is CopyIn, there is also one empty step, a CopyIn without a chunk.
  constexpr std::uint64_t last() const noexcept { return num_ahead_ + chunks_ * num_acts_; }

  // Return step `number`, from 1 to last(). Return {CopyIn, chunks()} for the empty step, in which
  // no chunk is left to copy in.
  constexpr Step at(std::uint64_t number) const noexcept {
    if (number <= num_ahead_) return {Act::CopyIn, 0};
    const std::uint64_t index = number - num_ahead_ - 1, act = index % num_acts_;
    return {acts_[act], index / num_acts_ + (act == 0 ? num_ahead_ : 0)};
  }

  // Return the number of the step that does `act` on `chunk`. `act` must be one of the acts of this
  // schedule.
  constexpr std::uint64_t number_of(Act act, std::uint64_t chunk) const noexcept {
    std::uint64_t index = 0;
    while (acts_[index] != act) ++index;
    if (act != Act::CopyIn) return num_ahead_ + chunk * num_acts_ + index + 1;
    return chunk == 0 ? 1 : num_ahead_ + (chunk - 1) * num_acts_ + 1;
  }

  // Return the number of the step that all ranks must have done before this rank begins step
  // `number`, or 0 if this rank need not wait. awaited_before(last() + 1) returns the number of the
  // step that all ranks must have done before the collective is complete on this rank.
  constexpr std::uint64_t awaited_before(std::uint64_t number) const noexcept {
    if (number == 1) return 0;
    if (number <= last() && at(number).act == Act::CopyIn) return 0;
    const Step previous = at(number - 1);
    if (previous.act == Act::CopyOut) return 0;
    return previous.act == Act::CopyIn ? number_of(Act::CopyIn, previous.chunk - 1) : number - 1;
  }

 private:
  const Act* acts_;
  std::uint64_t num_acts_;
  std::uint64_t chunks_;
  // The number of chunks that are copied in before the other acts begin: 1 if the first act is
  // CopyIn, otherwise 0.
  std::uint64_t num_ahead_;
};

}  // namespace ngd::comm::shm
