// SPDX-License-Identifier: Apache-2.0
// The cooperative algorithm: a large broadcast, or an all_to_all in place, with all operands in the
// shared arena. Each rank does a part of the work of all ranks.
#pragma once

#include "comm/shm/steps.hpp"

namespace ngd::comm::shm {

class Cooperative {
 public:
  // Return true if the call that `rank` has published allows this algorithm. The destination must
  // be in the shared arena. An all_to_all must be in place, with blocks of one size. A broadcast
  // must have at least 8 MiB, and the root's source must be in the shared arena.
  static bool suits(const Group& group, const TaskHead& task, int rank) noexcept;
  // Return true if the calls of all ranks allow the cooperative algorithm, as suits() defines.
  static bool suits_all(const Group& group, const TaskHead& task) noexcept;

  // Continue as far as possible. Return true if the collective is complete on this rank. Call it
  // when all ranks have arrived.
  bool advance(Context& context);

 private:
  Steps steps_;
};

}  // namespace ngd::comm::shm
