// SPDX-License-Identifier: Apache-2.0
// The engine of one host: publishes collectives, advances all that are in flight, waits, and
// watches.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/error.hpp"
#include "comm/communicator.hpp"
#include "comm/shm/group.hpp"
#include "comm/shm/heap.hpp"

namespace ngd::comm::shm {

struct Place {
  int rank = 0;
  int size = 1;
  bool crowded = false;  // more ranks than cores
};

class ShmCommunicator final : public Communicator {
 public:
  ShmCommunicator(std::unique_ptr<Memory> memory, std::unique_ptr<Liveness> liveness, Place place);
  ~ShmCommunicator() override;

  std::string_view name() const noexcept override { return "shm"; }
  int rank() const noexcept override { return group_.rank(); }
  int size() const noexcept override { return group_.size(); }
  int local_rank() const noexcept override { return group_.rank(); }
  int local_size() const noexcept override { return group_.size(); }

  Work submit(const Collective& collective) override;
  void wait(Work work, double timeout_seconds) override;
  bool done(Work work) override;
  bool wait_for(Work work, double seconds) override;
  std::unique_ptr<Communicator> split(int color, int key) override;
  SharedBlock allocate(std::size_t bytes) override;
  void release(SharedBlock block) noexcept override;
  void abort(const std::string& traceback) noexcept override;
  void close() noexcept override;

 private:
  struct Deadline {
    double seconds = 0;       // 0 = none
    std::uint64_t at_ns = 0;  // known once the first rungs of the ladder have not helped
  };

  // Runs an engine call: whatever it throws closes the group, and is told to the peers.
  template <class Call>
  decltype(auto) guarded(Call&& call);
  void check_usable() const;
  void shut(State state, ErrorKind kind, const std::string& message) noexcept;

  Algorithm resolve(const Collective& collective) const;
  void publish(const Task& task, const Collective& collective);
  void attach_program(Slot& slot, const ProgramIdentity* program);

  Task& task(std::uint64_t sequence) noexcept { return tasks_[sequence % kSlots]; }
  bool complete(std::uint64_t sequence) noexcept;
  void progress();
  void advance(Task& task);
  void decide(Task& task) const;
  bool take_lane(Task& task);
  bool run(Task& task);

  // Blocks until reached() is true, advancing everything; `target` is what it is about.
  template <class Reached>
  void block(const Task& target, Deadline deadline, Reached&& reached);
  const Task& blocker(const Task& target) noexcept;
  void inspect(const Task& target, Deadline& deadline);
  void look_at_peers(const Task& waiting);
  void late(const Task& waiting, double seconds) const;

  ForkGuard fork_guard_;
  Group group_;
  Heap heap_;
  Ladder ladder_;
  Algorithm preferred_;
  double submit_timeout_;

  std::vector<Task> tasks_{kSlots};
  std::uint64_t submitted_ = 0;
  std::uint64_t finished_ = 0;            // all sequences up to here are complete on this rank
  std::uint64_t slots_free_to_ = kSlots;  // sequences up to here may be submitted
  std::uint64_t lane_last_ = 0;           // the last task that took the staging lane
  bool lane_flat_ = true;                 // and whether it was a flat one
  std::uint64_t lane_chunks_ = 0;         // of all flat tasks so far
  std::uint64_t watched_ns_ = 0;          // when peers were last asked for signs of life
  std::uint64_t asked_ns_ = 0;            // when my caller was last asked for an interrupt

  bool closed_ = false;
  std::string closed_why_;
  struct ProgramText {
    std::uint64_t offset;
    std::uint32_t length;
  };
  std::unordered_map<std::uint64_t, ProgramText> programs_;
};

// Ranks that are threads of this process: for tests.
std::vector<std::unique_ptr<Communicator>> make_thread_ranks(int size);

}  // namespace ngd::comm::shm
