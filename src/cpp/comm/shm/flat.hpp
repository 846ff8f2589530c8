// SPDX-License-Identifier: Apache-2.0
// The flat algorithm for all_reduce and reduce. The elements are divided into one part per rank.
// Each rank reduces its part of all sources, in the canonical order (base/reduce.hpp), and stores
// the result in the destination of every rank that gets it.
#pragma once

#include "comm/shm/steps.hpp"

namespace ngd::comm::shm {

// The variant of the flat algorithm for operands that are all in the shared arena.
class FlatDirect {
 public:
  // Continue as far as possible. Return true if the collective is complete on this rank. Call it
  // when all ranks have arrived.
  bool advance(Context& context);

 private:
  Steps steps_;
};

// The variant of the flat algorithm for operands that are not all in the shared arena: the data
// pass through the staging buffers.
class FlatStaged {
 public:
  // Call this before all ranks have arrived: copy chunk 0 to its staging buffer, if it is free.
  void start_early(Context& context);
  // Continue as far as possible. Return true if the collective is complete on this rank. Call it
  // when all ranks have arrived.
  bool advance(Context& context);

 private:
  Steps steps_;
};

}  // namespace ngd::comm::shm
