// SPDX-License-Identifier: Apache-2.0
// Runs a program. The constructor builds the kernels and binds the operands; run() computes.
//
// An executor has one queue for all its kernels. On a device with asynchronous queues, run()
// enqueues kernels. It waits if the host needs a value: before a collective is submitted, for the
// predicate of a Cond, and for checks of values. run() returns when all its kernels have ended. So
// it throws the errors of all its kernels, and no kernel uses the variables afterwards.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "comm/communicator.hpp"
#include "device/device.hpp"
#include "kernels/kernel.hpp"
#include "runtime/arena.hpp"
#include "runtime/finite.hpp"
#include "runtime/interrupts.hpp"
#include "runtime/pending_collectives.hpp"
#include "runtime/program.hpp"
#include "runtime/recording.hpp"

namespace ngd::runtime {

// The objects that a nested program (the body of a Scan or a branch of a Cond) uses together with
// the executor that runs it.
struct RunContext {
  device::Device& device;
  device::Queue& queue;
  kernels::KernelTable table;
  PendingCollectives& collectives;
  Interrupts& interrupts;
};

class Executor {
 public:
  // `variables` are device pointers, numbered as in the program. Their memory must be valid during
  // each run; move_variables() changes the pointers. communicators[i] is the communicator of group
  // i of the program. The communicators belong to one family (a communicator and all that were
  // split from it) and must outlive the executor.
  // `interrupt` is called between two instructions, but not more often than every 100 ms. If it
  // returns true, the run throws Interrupted. `arena`: memory that this program and other programs
  // use in turn (arena.hpp), so only one of them runs at a time; null = the executor has memory of
  // its own.
  Executor(Program program, device::Device& device, kernels::KernelTable table,
           std::vector<comm::Communicator*> communicators, std::vector<void*> variables,
           Interrupt interrupt = nullptr, std::shared_ptr<Arena> arena = nullptr);
  // Make the executor of a nested program (nested.hpp). `arena` and `shared` are memory of the
  // outer program. The nested program uses `arena` as its private arena, and `shared` as its shared
  // arena, which may have values that collectives read or write.
  Executor(Program program, const RunContext& context, void* arena, void* shared);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Run the program. `inputs` and `outputs` have one host pointer per argument and per result. The
  // executor itself does not allocate memory. Throws the errors of kernels and collectives. Throws
  // Busy, without any effect, if this executor or another one with the same arena (memory that
  // programs use in turn) runs, or if another thread uses the group of the first collective. If
  // another thread uses the group of a later collective, the run waits until the group is free. If
  // a run of a program with collectives fails, this rank cannot submit the same sequence of
  // collectives as the other ranks any more. So the call closes the groups of the program and
  // notifies the other ranks.
  void run(const void* const* inputs, void* const* outputs);

  // Run a nested program. The pointers are device pointers. Enqueued work may be unfinished when
  // the call returns: the run of the outer program waits for it.
  void run_inside(const void* const* inputs, void* const* outputs);

  // Return true if the last run() threw after it had started or enqueued an instruction that writes
  // a variable.
  bool variables_touched() const noexcept { return variables_touched_; }
  const Program& program() const noexcept { return program_; }
  // Set the addresses of the variables. Throws Busy during a run.
  void move_variables(const std::vector<void*>& variables);

  // Return the measured times of runs and instructions, from the last recording (recording.hpp)
  // that includes a run of the program. Throws Busy during a recorded run.
  Record record() const;

 private:
  struct BoundInstruction;
  class RunTimer;
  // Return memory for the private arena (values that only this rank uses): from shared_arena_ if
  // possible, otherwise from own_arena_.
  void* private_memory();
  // Copy the constants to the device, and call bind_instruction() for each instruction.
  void bind();
  // Append an instruction to bound_, with its kernel, collective or nested programs, and with the
  // addresses that do not change between runs.
  void bind_instruction(const Instruction& instruction);
  // Return the op, attributes and types of an instruction, by which its kernel is made.
  kernels::KernelQuery query_of(const Instruction& instruction) const;
  // Set bound.kernel to the kernel for the query. Equal queries use one kernel, which the first
  // query makes.
  void bind_kernel(BoundInstruction& bound, const kernels::KernelQuery& query);
  // Make and prepare a kernel, and enlarge scratch_ for it. Throws Unsupported if the device has no
  // kernel for the query.
  std::unique_ptr<kernels::Kernel> make_kernel(const BoundInstruction& bound,
                                               const kernels::KernelQuery& query);
  // Return the device address of a value. Return null if the value has no memory, or if its address
  // is set at each call.
  void* static_pointer(const Value& value) const;
  // Run the program, and wait for all enqueued work. Arguments and results are copied to and from
  // the device if it cannot address them.
  void run_and_wait(const void* const* inputs, void* const* outputs);
  // Run the instructions, and measure the time of each one. `recording` is the number of the
  // current recording.
  void run_recorded(std::uint64_t recording, const void* const* inputs, void* const* outputs);
  // Check for signals, set the addresses of arguments and results, and execute the instruction.
  void perform(BoundInstruction& bound, const void* const* inputs, void* const* outputs);
  // Return record(). If the number `recording` is given and this program's times are from another
  // recording, leave them out. Example: a branch that did not run in the outer program's recording
  // may have times of an earlier recording.
  Record record_in(std::optional<std::uint64_t> recording) const;
  void drain() noexcept;
  // Run or enqueue the kernel or nested programs, or start or wait for the collective. Errors of
  // kernels get the call site of the instruction.
  void execute(BoundInstruction& bound);
  void execute_checked(BoundInstruction& bound);
  // Wait for the queue, and return the faults (NaN, infinity) of an array at a device pointer.
  Faults read_faults(const TensorType& type, const void* data);
  void save_overwritten(BoundInstruction& bound);
  void throw_if_nan_enters(const BoundInstruction& bound, std::size_t input) const;
  [[noreturn]] void throw_not_finite(const BoundInstruction& bound, std::size_t output, bool nan);

  Program program_;
  device::Device& device_;
  const bool stages_arguments_;  // the caller's arrays are copied to the device, and results back
  const bool check_finite_;
  const kernels::KernelTable table_;
  std::vector<void*> variables_;
  std::vector<device::Buffer> constants_;
  std::vector<device::Buffer> staged_inputs_, staged_outputs_;  // arguments, results on the device
  std::vector<std::byte> checked_value_;  // on the host: a copy of the value to check
  const std::shared_ptr<Arena> shared_arena_;
  device::Buffer own_shared_, own_arena_, scratch_;
  std::shared_ptr<Lent> lent_shared_;
  void* arena_;
  void* shared_ = nullptr;
  // by KernelQuery::key(), so equal instructions use the same kernel
  std::unordered_map<std::string, std::unique_ptr<kernels::Kernel>> kernels_;
  std::vector<BoundInstruction> bound_;
  const std::uint64_t number_ = recording().next_program();
  mutable std::mutex recorded_mutex_;  // protects the next two members; held by a recorded run
  Record record_;
  // the number of the recording (recording.hpp) in which the times in record_ were measured
  std::uint64_t recorded_in_ = 0;
  std::atomic<bool> own_running_{false};
  std::atomic<bool>& running_;
  bool variables_touched_ = false;
  std::unique_ptr<PendingCollectives> own_collectives_;
  PendingCollectives* collectives_ = nullptr;
  Interrupts own_interrupts_;
  Interrupts& interrupts_;
  // The queue of the executor of a whole program; null in the executor of a nested program.
  // Declared after the members that the enqueued work uses, so that it is destroyed before them:
  // its destructor waits for the work.
  std::unique_ptr<device::Queue> own_queue_;
  device::Queue* queue_;
  const bool is_asynchronous_;
};

}  // namespace ngd::runtime
