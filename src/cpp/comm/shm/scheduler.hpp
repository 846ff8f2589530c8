// SPDX-License-Identifier: Apache-2.0
// Advances the collectives that this rank has published to its peers, in the order in which they
// were submitted.
#pragma once

#include "comm/shm/slot_queue.hpp"
#include "comm/shm/staging.hpp"
#include "comm/stats.hpp"

namespace ngd::comm::shm {

class Scheduler {
 public:
  Scheduler(Group& group, SlotQueue& queue, Statistics& statistics)
      : group_(group), queue_(queue), statistics_(statistics) {}

  // Advance all collectives that this rank has published, as far as possible, without waiting.
  void advance_all();

 private:
  void advance(Task& task);
  void start_early(Task& task);
  bool run(Task& task);
  bool take_staging(Task& task);
  void count(Task& task) noexcept;
  int last_to_come(std::uint64_t sequence) const noexcept;

  Group& group_;
  SlotQueue& queue_;
  Statistics& statistics_;
  Staging staging_;
};

}  // namespace ngd::comm::shm
