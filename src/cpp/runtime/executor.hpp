// SPDX-License-Identifier: Apache-2.0
// Runs a program: kernels are constructed and operands bound once; a call computes.
//
// An executor has one queue, in which all its kernels run. On a device whose queues are
// asynchronous a call only enqueues, and waits where the host needs to know a value: before a
// collective is submitted, for the predicate of a choice, where values are checked, and at its end.
// So a call throws whatever fails in it, and its caller needs to hold the variables only until it
// returns.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
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

// What a program is lent by the one that runs it: where it enqueues, and how it talks.
struct Surroundings {
  device::Device& device;
  device::Queue& queue;
  kernels::KernelTable table;
  PendingCollectives& collectives;
  Interrupts& interrupts;
};

class Executor {
 public:
  // `variables` are device pointers, numbered as in the program, that outlive the executor.
  // The communicators are those of the program's groups, of one family, and outlive it too.
  // `interrupt` is asked between two instructions, at most every 100 ms; where it returns true
  // the run throws Interrupted. With an arena, the program uses its memory; of all programs with
  // one arena, one runs at a time.
  Executor(Program program, device::Device& device, kernels::KernelTable table,
           std::vector<comm::Communicator*> communicators, std::vector<void*> variables,
           Interrupt interrupt = nullptr, std::shared_ptr<Arena> arena = nullptr);
  // Of a program that another one runs (nested.hpp): its two arenas lie in memory of that.
  Executor(Program program, const Surroundings& surroundings, void* arena, void* shared);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Host pointers in, host pointers out; allocates nothing by itself. Throws what a kernel or a
  // collective throws; and Busy, after which nothing has happened, for a second call while one
  // runs, and where another thread uses the group of the program's first collective. Where the
  // program has collectives, a failure closes their groups: the peers are told, since this rank has
  // left the common sequence.
  void run(const void* const* inputs, void* const* outputs);

  // Of a program that another one runs: pointers of the device's in and out. What it enqueues may
  // be under way when it returns.
  void run_inside(const void* const* inputs, void* const* outputs);

  // Whether the last run() threw after the first instruction that writes a variable had begun, or
  // been enqueued.
  bool variables_touched() const noexcept { return variables_touched_; }
  const Program& program() const noexcept { return program_; }
  // The variables lie there now. Throws Busy while a run is under way.
  void move_variables(const std::vector<void*>& variables);

  // What the runs took in the last recording in which there were any. Throws Busy while one is
  // recorded.
  Record record() const;

 private:
  struct Step;
  class Watch;
  void* private_memory();
  void bind();
  void bind_step(const Instruction& instruction);
  kernels::KernelQuery query_of(const Instruction& instruction) const;
  void bind_kernel(Step& step, const kernels::KernelQuery& query);
  std::unique_ptr<kernels::Kernel> make_kernel(const Step& step, const kernels::KernelQuery& query);
  void* static_pointer(const Value& value) const;
  void run_to_the_end(const void* const* inputs, void* const* outputs);
  void run_recorded(std::uint64_t recording, const void* const* inputs, void* const* outputs);
  void perform(Step& step, const void* const* inputs, void* const* outputs);
  void drain() noexcept;
  void execute(Step& step);
  void execute_checked(Step& step);
  Faults look_at(const TensorType& type, const void* data);
  void keep_overwritten(Step& step);
  void expect_no_nan(const Step& step, std::size_t input) const;
  [[noreturn]] void refuse(const Step& step, std::size_t output, bool nan);

  Program program_;
  device::Device& device_;
  const bool stages_arguments_;  // the caller's arrays are copied to the device and back
  const bool check_finite_;
  const kernels::KernelTable table_;
  std::vector<void*> variables_;
  std::vector<device::Buffer> constants_;
  std::vector<device::Buffer> staged_inputs_, staged_outputs_;  // on the device
  std::vector<std::byte> looked_at_;                            // on the host: a value to check
  const std::shared_ptr<Arena> shared_arena_;
  device::Buffer own_shared_, own_arena_, scratch_;
  std::shared_ptr<Lent> lent_shared_;
  void* arena_;
  void* shared_ = nullptr;
  std::unordered_map<std::string, std::unique_ptr<kernels::Kernel>> kernels_;  // by query
  std::vector<Step> steps_;
  const std::uint64_t number_ = recording().next_program();
  mutable std::mutex recorded_mutex_;  // of what follows; a run that is recorded holds it
  Record record_;
  std::uint64_t recorded_in_ = 0;  // which recording
  std::atomic<bool> own_running_{false};
  std::atomic<bool>& running_;
  bool variables_touched_ = false;
  std::unique_ptr<PendingCollectives> own_collectives_;
  PendingCollectives* collectives_ = nullptr;
  Interrupts own_interrupts_;
  Interrupts& interrupts_;
  // Behind what it uses: it waits for what is enqueued before anything of that goes.
  std::unique_ptr<device::Queue> own_queue_;
  device::Queue* queue_;
  const bool asynchronous_;
};

}  // namespace ngd::runtime
