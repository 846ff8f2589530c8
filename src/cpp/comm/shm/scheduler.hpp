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
  // Advance one collective. Before all ranks have arrived, only do the work that needs no peer.
  // Afterwards, complete the choice of its algorithm and run it.
  void advance(Task& task);
  void start_early(Task& task);
  // Advance the algorithm of a task. Return true if the collective is complete on this rank.
  bool run(Task& task);
  bool take_staging(Task& task);
  // Note the time at which a task was completed, and add the task to the statistics.
  void count(Task& task) noexcept;
  // Return the rank that was the last one to publish a collective, by Slot::arrived_ns. The number
  // is the rank in this group.
  int last_to_come(std::uint64_t sequence) const noexcept;

  Group& group_;
  SlotQueue& queue_;
  Statistics& statistics_;
  Staging staging_;
};

}  // namespace ngd::comm::shm
