// SPDX-License-Identifier: Apache-2.0
// The pending collectives of a run: those that it has started and not yet waited for, in the
// program and in its nested programs.
//
// Communicators do not know queues, so a collective is submitted when its operand is computed. If
// the operand is not ready yet, the host enqueues the next instructions first. When the program
// starts another collective, the host submits the collectives whose operands are ready, in the
// order of the program. Before the host waits for a collective, it submits all started ones.
//
// The first collective of a run is an exception: the host waits for its operand and submits it at
// once. The communicator may refuse it because another thread uses the group, and a refused run
// must have no effect.
//
// Operands are copied to the host in a queue of their own, so that a copy waits only for its
// operand, and the instructions after it do not wait for the copy.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string_view>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/computations.hpp"
#include "device/device.hpp"
#include "runtime/program.hpp"

namespace ngd::runtime {

// A collective of the program. It is prepared once. It may be started many times, for example in
// each iteration of a Scan, but each wait() must come before the next start().
struct PendingCollective {
  const Instruction* instruction = nullptr;  // the Start instruction
  comm::Communicator* communicator = nullptr;
  comm::Collective collective;
  // The identity of the program, with a hash of its collectives. The ranks compare it, to find a
  // rank that runs another program. Not used for sends and receives.
  comm::ProgramIdentity program;
  std::vector<std::uint64_t> counts, receive_counts;
  comm::Work work;
  void* result = nullptr;  // the address on the device
  // the number of bytes of the result to set to zero, because this rank receives nothing; 0 if this
  // rank receives a result
  std::size_t bytes_to_clear = 0;
  bool is_staged = false;              // operand and result are copied through host memory
  device::Buffer source, destination;  // if is_staged: operand and result on the host
  // Events of an asynchronous queue: the operand is computed, and the operand is copied to the
  // host.
  std::unique_ptr<device::Event> operand_ready, operand_staged;
};

class PendingCollectives {
 public:
  // communicators[i] is the communicator of groups[i]. The communicators belong to one family (a
  // communicator and all that were split from it). The communicators, `groups` and the queue must
  // outlive this object.
  PendingCollectives(device::Device& device, device::Queue& queue,
                     std::vector<comm::Communicator*> communicators,
                     const std::vector<GroupSequence>& groups);

  // Prepare the collective of a Start instruction whose operand and result have these types. Throws
  // Internal if the types do not fit the collective.
  PendingCollective& add(const Instruction& instruction, const TensorType& operand,
                         const TensorType& result);

  // A guard for one run of the program. While the guard exists, a wait in one of the program's
  // groups also checks the other groups of the program for failures (Communicator::watch). When the
  // guard is constructed, each collective that an earlier run has started must have ended.
  class Run {
   public:
    explicit Run(PendingCollectives& collectives) noexcept : collectives_(collectives) {
      collectives_.begin();
    }
    ~Run() { collectives_.watch(false); }
    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;

   private:
    PendingCollectives& collectives_;
  };
  // Return true if the communicator has refused the first collective of this run, because another
  // thread uses its group. Then this run has submitted nothing, so it has had no effect on other
  // ranks. The caller must not call abort(), because the groups are still usable.
  bool was_refused() const noexcept { return was_refused_; }
  // start() starts a collective, and wait() waits for the result of a started one. `operand` and
  // `result` are device pointers. Both functions throw the errors of the communicator.
  void start(PendingCollective& pending, const void* operand, void* result);
  void wait(PendingCollective& pending);

  // Close the groups of the collectives, because this rank has failed and will not submit the
  // collectives that its peers wait for. The peers are notified of `why`.
  void abort(std::string_view why) noexcept;
  // Wait until the staging queue has copied all operands to the host. Then the caller may free the
  // operands. Errors of the copies are ignored.
  void drain() noexcept;

 private:
  // Forget the collectives that the last run has started, and call watch(true).
  void begin() noexcept;
  // Begin or end the watch of all groups of the program for failures (Peers::watch). If the program
  // has only one group, do nothing.
  void watch(bool on) noexcept;
  // Make the host buffers, events and queue that the collective needs on this device, if any.
  void add_staging(PendingCollective& pending, std::size_t operand_bytes, std::size_t result_bytes);
  void submit_started(bool all);
  // Submit a collective whose operand is ready. The first one of a run throws Busy if another
  // thread uses its group; the later ones wait until the group is free.
  void submit(PendingCollective& pending);

  device::Device& device_;
  device::Queue& queue_;
  const bool is_asynchronous_;
  double timeout_seconds_;
  std::vector<comm::Communicator*> communicators_;
  // One identity of the program per group. The ranks of the group compare it, to find a rank that
  // runs another program.
  std::vector<comm::ProgramIdentity> identities_;
  std::vector<comm::HeldComputation> held_computations_;
  std::deque<PendingCollective> collectives_;
  // If the queue is asynchronous: the started collectives, in the order of the program. The first
  // `submitted_` of them were submitted.
  std::vector<PendingCollective*> started_;
  std::size_t submitted_ = 0;
  bool has_submitted_ = false;
  bool was_refused_ = false;
  // The queue that copies operands to the host; null if there are no such copies. Declared last, so
  // that it is destroyed first: its destructor waits for the copies.
  std::unique_ptr<device::Queue> staging_queue_;
};

}  // namespace ngd::runtime
