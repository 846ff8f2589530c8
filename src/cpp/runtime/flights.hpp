// SPDX-License-Identifier: Apache-2.0
// The collectives of a run, whichever program of it starts them.
//
// Communicators know no queue, so a collective is submitted when its operand is there. Where that
// is later, the host goes on meanwhile: it enqueues what follows, and submits at the next
// collective that is started or waited for. A copy of the operand to the host has a queue of its
// own, since the other one is full of what follows. Not so the first collective of a run: it may be
// refused, and then nothing has happened.
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

// A collective made ready once, which may be started as often as it was waited for.
struct Flight {
  const Instruction* instruction = nullptr;  // the Start
  comm::Communicator* communicator = nullptr;
  comm::Collective collective;
  comm::ProgramIdentity program;  // where it is not between two ranks
  std::vector<std::uint64_t> counts, receive_counts;
  comm::Work work;
  void* result = nullptr;                        // on the device
  std::size_t zeros = 0;                         // bytes of it that this rank is given nothing for
  bool staged = false;                           // the operands are copied to the host and back
  device::Buffer source, destination;            // there
  std::unique_ptr<device::Event> there, copied;  // the operand; where the queue is asynchronous
};

class Flights {
 public:
  // The communicators are those of the groups, of one family, and outlive this, as the program's
  // groups and the queue do.
  Flights(device::Device& device, device::Queue& queue,
          std::vector<comm::Communicator*> communicators, const std::vector<GroupSequence>& groups);

  // Makes the collective of a Start ready, whose operand and result are of these types. Throws
  // Internal where they do not fit it.
  Flight& add(const Instruction& instruction, const TensorType& operand, const TensorType& result);

  // While a run lasts; none of the last one is in flight.
  class Run {
   public:
    explicit Run(Flights& flights) noexcept : flights_(flights) { flights_.begin(); }
    ~Run() { flights_.watch(false); }
    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;

   private:
    Flights& flights_;
  };
  // Whether a collective of this run was submitted.
  bool have_begun() const noexcept { return have_begun_; }
  // Pointers of the device's. Throws what the communicator throws.
  void start(Flight& flight, const void* operand, void* result);
  void wait(Flight& flight);

  // Closes the groups: this rank leaves the common sequence.
  void abort(std::string_view why) noexcept;
  // Waits until nothing that was enqueued here uses the operands.
  void drain() noexcept;

 private:
  void begin() noexcept;
  void watch(bool on) noexcept;
  void add_staging(Flight& flight, std::size_t operand_bytes, std::size_t result_bytes);
  void submit_started(bool all);
  void submit(Flight& flight);

  device::Device& device_;
  device::Queue& queue_;
  const bool asynchronous_;
  double timeout_seconds_;
  std::vector<comm::Communicator*> communicators_;
  std::vector<comm::ProgramIdentity> identities_;  // of each group
  std::vector<comm::HeldComputation> held_;        // there
  std::deque<Flight> flights_;
  std::vector<Flight*> started_;  // where the queue is asynchronous
  std::size_t submitted_ = 0;     // of these
  bool have_begun_ = false;
  std::unique_ptr<device::Queue>
      transfers_;  // of operands to the host; last, for it waits for them
};

}  // namespace ngd::runtime
