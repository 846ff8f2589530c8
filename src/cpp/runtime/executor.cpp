// SPDX-License-Identifier: Apache-2.0
#include "runtime/executor.hpp"

#include <algorithm>
#include <utility>

#include "base/config.hpp"
#include "base/error.hpp"

namespace ngd::runtime {

// An instruction made ready: its kernel or its collective, and where its operands are. Operands in
// the lanes Input and Output are patched at every call; all others never move.
struct Executor::Step {
  struct Patch {
    bool output_operand;
    std::size_t operand;
    bool from_outputs;
    std::size_t number;
  };
  const Instruction* instruction = nullptr;
  std::unique_ptr<kernels::Kernel> kernel;
  comm::Collective collective;
  comm::Work work;
  Step* started = nullptr;  // of a Wait
  device::Buffer host;      // of a Start where the host cannot address the device
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  std::vector<Patch> patches;
  bool writes_variable = false;
};

Executor::Executor(Program program, device::Device& device, kernels::KernelTable table,
                   comm::Communicator* communicator, std::vector<void*> variables)
    : program_(std::move(program)),
      device_(device),
      communicator_(communicator),
      variables_(std::move(variables)),
      arena_(device, program_.private_bytes),
      timeout_seconds_(config::timeout_seconds()) {
  verify(program_);
  check(variables_.size() == program_.variables, "executor: expected ", program_.variables,
        " variables; got ", variables_.size());
  for (const auto& bytes : program_.constants) {
    device::Buffer& buffer = constants_.emplace_back(device_, bytes.size());
    device_.copy_from_host(buffer.data(), bytes.data(), bytes.size());
  }
  if (program_.shared_bytes > 0) {
    check(communicator_ != nullptr, "executor: a shared lane without a communicator");
    if (device_.host_addressable())
      shared_ = communicator_->allocate(program_.shared_bytes);
    else
      staged_shared_ = device::Buffer(device_, program_.shared_bytes);
  }
  identity_ = {program_.collectives_hash, program_.collectives.c_str()};
  staged_inputs_.resize(program_.inputs);
  staged_outputs_.resize(program_.outputs);
  if (!device_.host_addressable())
    for (const Value& value : program_.values) {
      if (value.lane == Lane::Input && staged_inputs_[value.place].bytes() == 0)
        staged_inputs_[value.place] = device::Buffer(device_, value.type.bytes());
      if (value.lane == Lane::Output && staged_outputs_[value.place].bytes() == 0)
        staged_outputs_[value.place] = device::Buffer(device_, value.type.bytes());
    }
  steps_.reserve(program_.instructions.size());  // Wait steps point at Start steps
  for (const Instruction& instruction : program_.instructions) bind_step(instruction, table);
}

Executor::~Executor() {
  if (shared_.data != nullptr) communicator_->release(shared_);
}

void* Executor::static_pointer(const Value& value) const {
  const bool staged = !device_.host_addressable();
  switch (value.lane) {
    case Lane::Input:
      return staged ? staged_inputs_[value.place].data() : nullptr;
    case Lane::Output:
      return staged ? staged_outputs_[value.place].data() : nullptr;
    case Lane::Variable:
      return variables_[value.place];
    case Lane::Constant:
      return constants_[value.place].data();
    case Lane::Private:
      return static_cast<std::byte*>(arena_.data()) + value.place;
    case Lane::Shared:
      break;
  }
  void* shared = staged ? staged_shared_.data() : shared_.data;
  return static_cast<std::byte*>(shared) + value.place;
}

void Executor::bind_step(const Instruction& instruction, kernels::KernelTable table) {
  Step& step = steps_.emplace_back();
  step.instruction = &instruction;
  kernels::KernelQuery query{instruction.op, {}, {}, instruction.attrs};
  for (const bool output : {false, true}) {
    const auto& operands = output ? instruction.outputs : instruction.inputs;
    for (std::size_t i = 0; i < operands.size(); ++i) {
      const Value& value = program_.values[operands[i]];
      void* pointer = static_pointer(value);
      (output ? query.outputs : query.inputs).push_back(value.type);
      output ? step.outputs.push_back(pointer) : step.inputs.push_back(pointer);
      const bool moves = value.lane == Lane::Input || value.lane == Lane::Output;
      if (moves && device_.host_addressable())
        step.patches.push_back({output, i, value.lane == Lane::Output, value.place});
      step.writes_variable |= output && value.lane == Lane::Variable;
    }
  }
  if (instruction.action == Action::Wait) {
    step.started = &steps_[instruction.start];
  } else if (instruction.action == Action::Start) {
    check(communicator_ != nullptr, "executor: a collective without a communicator");
    step.collective.kind = comm::kind_named(instruction.op);
    if (instruction.attrs.has("reduce_op"))
      step.collective.op = comm::reduce_op_named(instruction.attrs.text("reduce_op"));
    if (instruction.attrs.has("algorithm"))
      step.collective.algorithm = comm::algorithm_named(instruction.attrs.text("algorithm"));
    step.collective.root = static_cast<int>(instruction.attrs.integer("root", 0));
    step.collective.dtype = query.inputs.at(0).dtype;
    step.collective.count = static_cast<std::uint64_t>(query.inputs.at(0).count());
    step.collective.program = &identity_;
    step.collective.site = instruction.site.c_str();
    if (!device_.host_addressable())
      step.host = device::Buffer(device::cpu(), query.inputs.at(0).bytes());
  } else {
    kernels::Verdict verdict;
    std::string reasons;
    const kernels::KernelRow* row = kernels::find(table, query, &verdict, &reasons);
    if (row == nullptr)
      fail(ErrorKind::Unsupported, device_.name(), ": no kernel for ", instruction.op, " (made at ",
           instruction.site, "): ", reasons);
    step.kernel = row->construct(query);
    if (verdict.scratch_bytes > scratch_.bytes())
      scratch_ = device::Buffer(device_, verdict.scratch_bytes);
  }
}

void Executor::run(const void* const* inputs, void* const* outputs) {
  if (running_.exchange(true, std::memory_order_acquire))
    fail(ErrorKind::Busy, "Executable: a second call while one runs in another thread");
  struct Release {
    std::atomic<bool>& flag;
    ~Release() { flag.store(false, std::memory_order_release); }
  } release{running_};
  variables_touched_ = false;
  try {
    run_steps(inputs, outputs);
  } catch (const std::exception& error) {
    if (program_.collectives_hash != 0) communicator_->abort(error.what());
    throw;
  }
  variables_touched_ = false;
}

void Executor::run_steps(const void* const* inputs, void* const* outputs) {
  const bool staged = !device_.host_addressable();
  if (staged)
    for (std::size_t i = 0; i < staged_inputs_.size(); ++i)
      device_.copy_from_host(staged_inputs_[i].data(), inputs[i], staged_inputs_[i].bytes());
  for (Step& step : steps_) {
    for (const Step::Patch& patch : step.patches) {
      if (patch.output_operand)
        step.outputs[patch.operand] = outputs[patch.number];
      else
        step.inputs[patch.operand] =
            patch.from_outputs ? outputs[patch.number] : inputs[patch.number];
    }
    variables_touched_ |= step.writes_variable;
    execute(step);
  }
  if (staged)
    for (std::size_t i = 0; i < staged_outputs_.size(); ++i)
      device_.copy_to_host(outputs[i], staged_outputs_[i].data(), staged_outputs_[i].bytes());
}

void Executor::execute(Step& step) {
  switch (step.instruction->action) {
    case Action::Start:
      return start(step);
    case Action::Wait:
      return finish(*step.started);
    case Action::Run:
      break;
  }
  try {
    step.kernel->run({step.inputs.data(), step.outputs.data(), scratch_.data()});
  } catch (const Error& error) {
    throw Error(error.kind(), concat(error.what(), " (in ", step.instruction->op, ", made at ",
                                     step.instruction->site, ")"));
  }
}

void Executor::start(Step& step) {
  step.collective.source = step.inputs[0];
  step.collective.destination = step.outputs[0];
  if (!device_.host_addressable()) {
    device_.copy_to_host(step.host.data(), step.inputs[0], step.host.bytes());
    step.collective.source = step.collective.destination = step.host.data();
  }
  step.work = communicator_->submit(step.collective);
}

void Executor::finish(Step& step) {
  communicator_->wait(step.work, timeout_seconds_);
  if (!device_.host_addressable())
    device_.copy_from_host(step.outputs[0], step.host.data(), step.host.bytes());
}

}  // namespace ngd::runtime
