// SPDX-License-Identifier: Apache-2.0
// Runs a program: kernels are constructed and operands bound once; a call computes.
#pragma once

#include <atomic>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "comm/communicator.hpp"
#include "device/device.hpp"
#include "kernels/kernel.hpp"
#include "runtime/program.hpp"

namespace ngd::runtime {

class Executor {
 public:
  // `variables` are device pointers, numbered as in the program, that outlive the executor.
  // The communicators are those of the program's groups, of one family, and outlive it too.
  Executor(Program program, device::Device& device, kernels::KernelTable table,
           std::vector<comm::Communicator*> communicators, std::vector<void*> variables);
  // Of a program that another one runs (nested.hpp): its private values lie in `arena`.
  Executor(Program program, device::Device& device, kernels::KernelTable table, void* arena);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Host pointers in, host pointers out; allocates nothing. Throws what a kernel or a collective
  // throws; and Busy, after which nothing has happened, for a second call while one runs, and where
  // another thread uses the group of the program's first collective. Where the program has
  // collectives, a failure closes their groups: the peers are told, since this rank has left the
  // common sequence.
  void run(const void* const* inputs, void* const* outputs);

  // Of a program that another one runs: pointers of the device's in and out.
  void run_inside(const void* const* inputs, void* const* outputs);

  // Whether the last run() threw after the first instruction that writes a variable had begun.
  bool variables_touched() const noexcept { return variables_touched_; }
  const Program& program() const noexcept { return program_; }

 private:
  struct Step;

  void bind(kernels::KernelTable table);
  void bind_step(const Instruction& instruction, kernels::KernelTable table);
  void bind_kernel(Step& step, const kernels::KernelQuery& query, kernels::KernelTable table);
  std::unique_ptr<kernels::Kernel> make_kernel(const Step& step, const kernels::KernelQuery& query,
                                               kernels::KernelTable table);
  void bind_start(Step& step, const kernels::KernelQuery& query);
  void* static_pointer(const Value& value) const;
  void abort(std::string_view why) noexcept;
  void execute(Step& step);
  void execute_checked(Step& step);
  void start(Step& step);
  void finish(Step& step);

  Program program_;
  device::Device& device_;
  const bool staged_;  // the caller's arrays are copied to the device and back
  const bool check_finite_;
  std::vector<comm::Communicator*> communicators_;
  std::vector<void*> variables_;
  std::vector<device::Buffer> constants_;
  // Where the host cannot address the device: these lanes lie in it, and are copied.
  std::vector<device::Buffer> staged_inputs_, staged_outputs_;
  device::Buffer staged_shared_;
  device::Buffer own_arena_, scratch_;
  void* arena_;
  comm::SharedBlock shared_;
  std::vector<comm::ProgramIdentity> identities_;                              // of each group
  std::vector<comm::HeldComputation> held_;                                    // there
  std::unordered_map<std::string, std::unique_ptr<kernels::Kernel>> kernels_;  // by query
  std::vector<Step> steps_;
  double timeout_seconds_;
  std::atomic<bool> running_{false};
  bool has_begun_ = false;  // this run's collectives
  bool variables_touched_ = false;
};

}  // namespace ngd::runtime
