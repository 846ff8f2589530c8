// SPDX-License-Identifier: Apache-2.0
// For each compiled step that this rank runs, a text that lists the collectives of the step. It is
// in the shared arena: if the calls of two ranks differ, their error messages use both texts.
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
  // The offset of ProgramIdentity::text in this rank's segment; kPrivate: there is no text.
  std::uint64_t offset = kPrivate;
  std::uint32_t length = 0;
  std::uint64_t used = 0;  // the number of the last collective that the compiled step has submitted
};

class ProgramTexts {
 public:
  ProgramTexts(Heap& heap, const Group& group, const Computations& held)
      : heap_(heap), group_(group), held_(held) {}

  // Return the text of the compiled step `program`, to which collective number `sequence` belongs.
  // At the first call for a step, copy its text to the shared arena, and release texts that are not
  // needed any more. `slots_free_to`: the collectives up to this number may be published now
  // (SlotQueue), because all ranks have finished the collectives up to slots_free_to - kSlots.
  ProgramText text_of(const ProgramIdentity* program, std::uint64_t sequence,
                      std::uint64_t slots_free_to);
  // Return the offsets of all texts in the heap. The caller must release them. Allocates no memory.
  std::vector<std::uint64_t> take_blocks() noexcept;

 private:
  void release_unused(std::uint64_t slots_free_to) noexcept;

  Heap& heap_;
  const Group& group_;
  const Computations& held_;
  // The key of a text is mix(text.hash, text.computation).
  std::unordered_map<std::uint64_t, ProgramText> texts_;
  // An empty vector with capacity for one offset per entry of texts_. take_blocks() must not
  // allocate memory, so it fills and returns this vector.
  std::vector<std::uint64_t> blocks_;
};

}  // namespace ngd::comm::shm
