// SPDX-License-Identifier: Apache-2.0
// The all_reduce of ranks on several NUMA nodes: a reduction inside each node, then between the
// nodes.
#pragma once

#include "comm/shm/steps.hpp"

namespace ngd::comm::shm {

// The all_reduce over NUMA nodes, for operands that are all in the shared arena (memory that all
// ranks of the host map).
class NodesDirect {
 public:
  // Advance the collective as far as possible. Return true if it is complete (context.hpp).
  bool advance(Context& context);

 private:
  Steps steps_;
};

// The all_reduce over NUMA nodes, for operands that are not all in the shared arena. Each rank
// copies its data chunk by chunk to its staging buffers, which the other ranks can read.
class NodesStaged {
 public:
  // Before all ranks have arrived, copy chunk 0 to its staging buffer if the buffer is free.
  void start_early(Context& context);
  // Advance the collective as far as possible. Return true if it is complete (context.hpp).
  bool advance(Context& context);

 private:
  Steps steps_;
};

}  // namespace ngd::comm::shm
