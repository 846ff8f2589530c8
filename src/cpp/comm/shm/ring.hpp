// SPDX-License-Identifier: Apache-2.0
// The ring algorithm for all_reduce: partial sums travel from rank to rank, and then the whole sums
// do.
#pragma once

#include "comm/shm/context.hpp"

namespace ngd::comm::shm {

class Ring {
 public:
  // Advance the collective as far as possible. Return true if it is complete (context.hpp).
  bool advance(Context& context);

 private:
  class Pass;  // the work of one call of advance()
  enum class Phase : std::uint8_t { Begin, Reduce, Gather };

  Phase phase_ = Phase::Begin;
  int round_ = 0;  // the current round of phase Reduce or Gather (ring.cpp), counted from 0
  std::uint64_t chunk_ = 0;
};

}  // namespace ngd::comm::shm
