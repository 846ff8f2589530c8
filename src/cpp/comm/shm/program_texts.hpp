// SPDX-License-Identifier: Apache-2.0
// The texts of the compiled steps that this rank runs, in the shared arena, for the messages that a
// mismatch may need.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "comm/collective.hpp"
#include "comm/computations.hpp"
#include "comm/shm/group.hpp"
#include "comm/shm/heap.hpp"

namespace ngd::comm::shm {

struct ProgramText {
  std::uint64_t hash = 0;
  std::uint64_t computation = 0;
  std::uint64_t offset = kPrivate;  // the text in this rank's segment; kPrivate: no text
  std::uint32_t length = 0;
  std::uint64_t used = 0;  // the number of the last collective that uses the text
};

class ProgramTexts {
 public:
  ProgramTexts(Heap& heap, const Group& group, const Computations& held)
      : heap_(heap), group_(group), held_(held) {}

  // Return the text of a program that collective number `sequence` uses. At its first use, copy the
  // text to the shared arena, and release texts that are not needed any more. `slots_free_to`: the
  // largest number of a collective that may be published now (SlotQueue). All ranks have finished
  // collective number slots_free_to - kSlots, which had the same slot, and all collectives before
  // it.
  ProgramText text_of(const ProgramIdentity* program, std::uint64_t sequence,
                      std::uint64_t slots_free_to);
  // Return the offsets of all texts in the heap. The caller must release them. Allocates no memory.
  std::vector<std::uint64_t> take_blocks() noexcept;

 private:
  void release_unused(std::uint64_t slots_free_to) noexcept;

  Heap& heap_;
  const Group& group_;
  const Computations& held_;
  // The key is mix(ProgramText::hash, ProgramText::computation).
  std::unordered_map<std::uint64_t, ProgramText> texts_;
  // An empty vector with capacity for the result of take_blocks(), which must not allocate memory.
  std::vector<std::uint64_t> blocks_;
};

}  // namespace ngd::comm::shm
