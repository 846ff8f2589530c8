// SPDX-License-Identifier: Apache-2.0
#include "runtime/executor.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "base/config.hpp"
#include "base/error.hpp"
#include "runtime/finite.hpp"
#include "runtime/first_fault.hpp"
#include "runtime/nested.hpp"

namespace ngd::runtime {

namespace {
// A kernel whose operands and results have at most this many bytes takes at most about ten
// microseconds, so no check for signals precedes it. A check reads the clock, which takes 9 ns. If
// the kernels of a scan's body use few elements, these checks would take a seventh of the time of
// an iteration.
constexpr std::size_t kShortBytes = 16 << 10;

// Locks an executor during a call. A second call at the same time throws Busy.
class RunLock {
 public:
  explicit RunLock(std::atomic<bool>& flag) : flag_(flag) {
    if (flag.exchange(true, std::memory_order_acquire))
      fail(ErrorKind::Busy, "Executable: a second call while one runs in another thread");
  }
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;
  ~RunLock() { flag_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool>& flag_;
};

// Return an error with the same kind and text, and the op and call site of the instruction.
Error with_site(const Error& error, const Instruction& instruction) {
  return {error.kind(),
          concat(error.what(), " (in ", instruction.op, ", made at ", instruction.site, ")")};
}

// Throw NotFinite with the text `what` and the op and call site of `member`. If `member` is null,
// the text has those of the instruction.
[[noreturn]] void fail_not_finite(const Instruction& instruction, const Member* member,
                                  const std::string& what) {
  fail(ErrorKind::NotFinite, "NGD_CHECK_FINITE: ", what, " ",
       member == nullptr ? instruction.op : member->op, ", made at ",
       member == nullptr ? instruction.site : member->site);
}
}  // namespace

// An instruction with its kernel or collective and the addresses of its operands. The addresses of
// inputs and outputs of the program are set at every call. All other addresses are set once.
struct Executor::BoundInstruction {
  struct Patch {
    bool is_output_operand;
    std::size_t operand;
    bool is_from_outputs;
    std::size_t number, offset;
  };
  const Instruction* instruction = nullptr;
  const kernels::Kernel* kernel = nullptr;  // of a Run instruction
  std::unique_ptr<Nested> nested;           // of a Scan or a Cond: its nested programs
  BoundInstruction* started = nullptr;      // for a Wait: the Start whose collective it waits for
  PendingCollective* pending = nullptr;     // of a Start or a Wait: its collective
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  std::vector<Patch> patches;
  bool writes_variable = false;
  bool is_short = false;      // a kernel that takes microseconds, so signals are not checked first
  std::int64_t begin_ns = 0;  // the time at which the instruction began in the last recorded run
  Faults before;              // with NGD_CHECK_FINITE: the faults (NaN, infinity) of the operands
  struct SavedOperand {
    std::size_t input;
    device::Buffer bytes;
  };
  // With NGD_CHECK_FINITE: copies of the operands that a fused kernel overwrites. If the result has
  // a NaN or an infinity, first_fault() runs the ops of the kernel again with these copies.
  std::vector<SavedOperand> saved;
};

Executor::Executor(Program program, device::Device& device, kernels::KernelTable table,
                   std::vector<comm::Communicator*> communicators, std::vector<void*> variables,
                   Interrupt interrupt, std::shared_ptr<Arena> arena)
    : program_(std::move(program)),
      device_(device),
      stages_arguments_(!device.addresses_host()),
      check_finite_(config::check_finite()),
      table_(table),
      variables_(std::move(variables)),
      shared_arena_(std::move(arena)),
      arena_(private_memory()),
      running_(shared_arena_ ? shared_arena_->running() : own_running_),
      own_interrupts_(interrupt),
      interrupts_(own_interrupts_),
      own_queue_(device.make_queue()),
      queue_(own_queue_.get()),
      is_asynchronous_(queue_->asynchronous()) {
  verify(program_);
  check(variables_.size() == program_.variables, "executor: expected ", program_.variables,
        " variables; got ", variables_.size());
  if (program_.shared_bytes > 0) {
    check(!communicators.empty(), "executor: a shared arena without a communicator");
    comm::Communicator& owner = *communicators[0];
    if (owner.lends_to(device_)) {
      lent_shared_ = shared_arena_ ? shared_arena_->lend(owner, program_.shared_bytes)
                                   : std::make_shared<Lent>(owner, program_.shared_bytes);
      shared_ = lent_shared_->data();
    } else {
      own_shared_ = device::Buffer(device_, program_.shared_bytes);
      shared_ = own_shared_.data();
    }
  }
  own_collectives_ = std::make_unique<PendingCollectives>(device, *queue_, std::move(communicators),
                                                          program_.groups);
  collectives_ = own_collectives_.get();
  staged_inputs_.resize(program_.inputs);
  staged_outputs_.resize(program_.outputs);
  if (stages_arguments_)
    for (const Value& value : program_.values) {
      if (value.memory != MemoryKind::Input && value.memory != MemoryKind::Output) continue;
      auto& staged = value.memory == MemoryKind::Input ? staged_inputs_ : staged_outputs_;
      const std::size_t end = value.offset + value.type.bytes();
      if (staged[value.position].bytes() < end)
        staged[value.position] = device::Buffer(device_, end);
    }
  bind();
}

Executor::Executor(Program program, const RunContext& context, void* arena, void* shared)
    : program_(std::move(program)),
      device_(context.device),
      stages_arguments_(false),
      check_finite_(config::check_finite()),
      table_(context.table),
      arena_(arena),
      shared_(shared),
      running_(own_running_),
      collectives_(&context.collectives),
      own_interrupts_(nullptr),
      interrupts_(context.interrupts),
      queue_(&context.queue),
      is_asynchronous_(queue_->asynchronous()) {
  bind();
}

Executor::~Executor() = default;

void* Executor::private_memory() {
  if (shared_arena_ && device_.addresses_host() && device_.host_addressable())
    if (void* memory = shared_arena_->reserve(program_.private_bytes)) return memory;
  own_arena_ = device::Buffer(device_, program_.private_bytes);
  return own_arena_.data();
}

void Executor::bind() {
  for (const auto& bytes : program_.constants)
    constants_.emplace_back(device_, bytes.size()).write(bytes.data());
  // In bound_, the element of a Wait has a pointer to the element of its Start. So bound_ must not
  // be reallocated.
  bound_.reserve(program_.instructions.size());
  for (const Instruction& instruction : program_.instructions) bind_instruction(instruction);
}

void* Executor::static_pointer(const Value& value) const {
  const auto part_of = [&](void* base) { return static_cast<std::byte*>(base) + value.offset; };
  switch (value.memory) {
    case MemoryKind::Input:
      return stages_arguments_ ? part_of(staged_inputs_[value.position].data()) : nullptr;
    case MemoryKind::Output:
      return stages_arguments_ ? part_of(staged_outputs_[value.position].data()) : nullptr;
    case MemoryKind::Variable:
      return part_of(variables_[value.position]);
    case MemoryKind::Constant:
      return part_of(constants_[value.position].data());
    case MemoryKind::Private:
      return static_cast<std::byte*>(arena_) + value.position;
    case MemoryKind::Nowhere:
      return nullptr;
    case MemoryKind::Shared:
      break;
  }
  return static_cast<std::byte*>(shared_) + value.position;
}

void Executor::move_variables(const std::vector<void*>& variables) {
  check(variables.size() == program_.variables, "executor: expected ", program_.variables,
        " variables; got ", variables.size());
  const RunLock running(running_);
  variables_ = variables;
  const auto move_pointers = [&](const std::vector<int>& values, auto& pointers) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const Value& value = program_.values[static_cast<std::size_t>(values[i])];
      if (value.memory == MemoryKind::Variable) pointers[i] = static_pointer(value);
    }
  };
  for (BoundInstruction& bound : bound_) {
    move_pointers(bound.instruction->inputs, bound.inputs);
    move_pointers(bound.instruction->outputs, bound.outputs);
  }
}

kernels::KernelQuery Executor::query_of(const Instruction& instruction) const {
  kernels::KernelQuery query{instruction.op, {}, {}, instruction.attrs};
  for (const int value : instruction.inputs) query.inputs.push_back(program_.values[value].type);
  for (const int value : instruction.outputs) query.outputs.push_back(program_.values[value].type);
  return query;
}

void Executor::bind_instruction(const Instruction& instruction) {
  BoundInstruction& bound = bound_.emplace_back();
  bound.instruction = &instruction;
  const kernels::KernelQuery query = query_of(instruction);
  for (const bool output : {false, true}) {
    const auto& operands = output ? instruction.outputs : instruction.inputs;
    for (std::size_t i = 0; i < operands.size(); ++i) {
      const Value& value = program_.values[operands[i]];
      void* pointer = static_pointer(value);
      output ? bound.outputs.push_back(pointer) : bound.inputs.push_back(pointer);
      const bool is_argument =
          value.memory == MemoryKind::Input || value.memory == MemoryKind::Output;
      if (is_argument && !stages_arguments_)
        bound.patches.push_back(
            {output, i, value.memory == MemoryKind::Output, value.position, value.offset});
      bound.writes_variable |= output && value.memory == MemoryKind::Variable;
    }
  }
  std::size_t bytes = 0;
  for (const auto* types : {&query.inputs, &query.outputs})
    for (const TensorType& type : *types) bytes += type.bytes();
  bound.is_short = instruction.action == Action::Run && bytes <= kShortBytes;
  switch (instruction.action) {
    case Action::Start:
      bound.pending = &collectives_->add(instruction, query.inputs.at(0), query.outputs.at(0));
      return;
    case Action::Wait:
      bound.started = &bound_[instruction.start];
      bound.pending = bound.started->pending;
      return;
    case Action::Run:
      return bind_kernel(bound, query);
    case Action::Scan:
    case Action::Cond:
      bound.nested =
          make_nested(instruction, query, {device_, *queue_, table_, *collectives_, interrupts_},
                      bound.outputs.data() + bound.outputs.size() - 2);
  }
}

void Executor::bind_kernel(BoundInstruction& bound, const kernels::KernelQuery& query) {
  const auto [kernel, is_new] = kernels_.try_emplace(query.key());
  if (is_new) kernel->second = make_kernel(bound, query);
  bound.kernel = kernel->second.get();
}

std::unique_ptr<kernels::Kernel> Executor::make_kernel(const BoundInstruction& bound,
                                                       const kernels::KernelQuery& query) {
  kernels::Offer offer = kernels::find(table_, query, kernels::this_machine()).offer;
  if (offer.kernel == nullptr)
    fail(ErrorKind::Unsupported, device_.name(), ": no kernel for ", query.op, " (made at ",
         bound.instruction->site, "): ", offer.refusal);
  const std::size_t scratch_bytes = offer.kernel->scratch_bytes();
  if (scratch_bytes > scratch_.bytes()) scratch_ = device::Buffer(device_, scratch_bytes);
  offer.kernel->prepare();
  return std::move(offer.kernel);
}

void Executor::run(const void* const* inputs, void* const* outputs) {
  const RunLock running(running_);
  variables_touched_ = false;
  const PendingCollectives::Run pending_run(*collectives_);
  notify_on_failure([&] { run_and_wait(inputs, outputs); },
                    [&](const FailureView& failure) {
                      if (!collectives_->was_refused()) collectives_->abort(failure.text);
                      drain();
                    });
  variables_touched_ = false;
}

void Executor::run_and_wait(const void* const* inputs, void* const* outputs) try {
  queue_->set_origin(nullptr);
  interrupts_.begin();
  if (stages_arguments_)
    for (std::size_t i = 0; i < staged_inputs_.size(); ++i)
      queue_->copy_from_host(staged_inputs_[i].data(), inputs[i], staged_inputs_[i].bytes());
  run_inside(inputs, outputs);
  queue_->set_origin(nullptr);
  if (stages_arguments_)
    for (std::size_t i = 0; i < staged_outputs_.size(); ++i)
      queue_->copy_to_host(outputs[i], staged_outputs_[i].data(), staged_outputs_[i].bytes());
  if (is_asynchronous_) queue_->synchronize();
} catch (const device::QueueError& error) {
  if (error.origin() == nullptr) throw;
  throw with_site(error, *static_cast<const Instruction*>(error.origin()));
}

// Wait for the kernels and copies that a failed run has enqueued: they use the caller's arrays and
// the variables, which may be freed when the run has thrown. Their errors are ignored, because the
// run has failed already.
void Executor::drain() noexcept {
  if (!is_asynchronous_) return;
  collectives_->drain();
  try {
    queue_->synchronize();
  } catch (const std::exception&) {
  }
}

void Executor::run_inside(const void* const* inputs, void* const* outputs) {
  if (const std::uint64_t on = recording().current(); on != 0) [[unlikely]]
    return run_recorded(on, inputs, outputs);
  for (BoundInstruction& bound : bound_) perform(bound, inputs, outputs);
}

void Executor::perform(BoundInstruction& bound, const void* const* inputs, void* const* outputs) {
  // No interrupt ends a run after its first update of a variable, so Ctrl-C does not leave some
  // variables updated and others not. The updates are the last instructions of a program.
  if (!bound.is_short && !variables_touched_) interrupts_.check();
  for (const BoundInstruction::Patch& patch : bound.patches) {
    const void* base = patch.is_from_outputs ? outputs[patch.number] : inputs[patch.number];
    const std::byte* part = static_cast<const std::byte*>(base) + patch.offset;
    if (patch.is_output_operand)
      bound.outputs[patch.operand] = const_cast<std::byte*>(part);
    else
      bound.inputs[patch.operand] = part;
  }
  variables_touched_ |= bound.writes_variable;
  if (check_finite_) [[unlikely]]
    execute_checked(bound);
  else
    execute(bound);
}

// Measures the times of a recorded run. If an instruction throws, the times up to it are kept.
class Executor::RunTimer {
 public:
  RunTimer(Executor& executor, std::uint64_t recording)
      : lock_(executor.recorded_mutex_), executor_(executor), record_(executor.record_) {
    if (executor.recorded_in_ != recording) {
      record_.whole = {};
      record_.instructions.assign(executor.bound_.size(), {});
      executor.recorded_in_ = recording;
    }
    if (ngd::runtime::recording().wants_events()) {
      events_.reserve(executor.bound_.size() + 1);
      thread_ = static_cast<std::uint64_t>(gettid());
    }
    begin_ns_ = last_ns_ = now_ns();
  }
  RunTimer(const RunTimer&) = delete;
  RunTimer& operator=(const RunTimer&) = delete;
  ~RunTimer() {
    if (next_ < executor_.bound_.size()) end_instruction();
    record_.whole.add(last_ns_ - begin_ns_);
    if (events_.capacity() == 0) return;
    events_.push_back({executor_.number_, Event::kWhole, thread_, begin_ns_, last_ns_});
    ngd::runtime::recording().add(executor_.number_, executor_.program_, events_);
  }

  // Store the duration of instruction `next_`: from the end of the previous instruction until now.
  void end_instruction() {
    BoundInstruction& bound = executor_.bound_[next_];
    Timing& timing = record_.instructions[next_];
    const std::int64_t now = now_ns();
    bound.begin_ns = last_ns_;
    timing.add(now - last_ns_);
    if (bound.started != nullptr)
      timing.pending_ns += static_cast<std::uint64_t>(now - bound.started->begin_ns);
    if (events_.capacity() > 0)
      events_.push_back(
          {executor_.number_, static_cast<std::uint32_t>(next_), thread_, last_ns_, now});
    last_ns_ = now;
    ++next_;
  }

 private:
  std::scoped_lock<std::mutex> lock_;
  Executor& executor_;
  Record& record_;
  std::vector<Event> events_;  // the constructor reserves memory for all events of the run
  std::uint64_t thread_ = 0;
  std::size_t next_ = 0;
  std::int64_t begin_ns_ = 0, last_ns_ = 0;
};

void Executor::run_recorded(std::uint64_t recording, const void* const* inputs,
                            void* const* outputs) {
  RunTimer timer(*this, recording);
  for (BoundInstruction& bound : bound_) {
    perform(bound, inputs, outputs);
    if (is_asynchronous_) queue_->synchronize();
    timer.end_instruction();
  }
}

Record Executor::record() const { return record_in(std::nullopt); }

Record Executor::record_in(std::optional<std::uint64_t> recording) const {
  const std::unique_lock lock(recorded_mutex_, std::try_to_lock);
  if (!lock.owns_lock())
    fail(ErrorKind::Busy, "Executable.report: the step runs now, in another thread");
  Record record;
  if (!recording || *recording == recorded_in_) record = record_;
  record.instructions.resize(bound_.size());
  for (const BoundInstruction& bound : bound_) {
    if (bound.nested == nullptr) continue;
    for (const Executor* program : bound.nested->programs())
      record.bodies.push_back(program->record_in(recording.value_or(recorded_in_)));
  }
  return record;
}

void Executor::execute(BoundInstruction& bound) {
  queue_->set_origin(bound.instruction);
  switch (bound.instruction->action) {
    case Action::Start:
      return collectives_->start(*bound.pending, bound.inputs[0], bound.outputs[0]);
    case Action::Wait:
      return collectives_->wait(*bound.pending);
    case Action::Scan:
    case Action::Cond:
      return bound.nested->run(bound.inputs.data(), bound.outputs.data());
    case Action::Run:
      break;
  }
  try {
    bound.kernel->run({bound.inputs.data(), bound.outputs.data(), scratch_.data(), queue_});
  } catch (const std::out_of_range& error) {
    // The error's text already names the public call, so only the call site is added.
    throw std::out_of_range(concat(error.what(), " (made at ", bound.instruction->site, ")"));
  } catch (const Error& error) {
    throw with_site(error, *bound.instruction);
  }
}

// Run an instruction and check its result. Throw NotFinite in three cases: the result has a NaN and
// no operand has one; the result has an infinity and no operand has an infinity or a NaN; or an
// operand that is an argument or a variable of the step has a NaN. The numbers in the attributes
// count as operands. A collective has two instructions: Start reads the operand, and Wait has the
// result. So the result is checked after Wait, against the faults of the operand.
void Executor::execute_checked(BoundInstruction& bound) {
  const BoundInstruction& operation = bound.started == nullptr ? bound : *bound.started;
  bound.before = faults_of(bound.instruction->attrs);
  for (std::size_t i = 0; i < bound.inputs.size(); ++i) {
    const Faults faults =
        read_faults(program_.values[bound.instruction->inputs[i]].type, bound.inputs[i]);
    if (faults.nan) throw_if_nan_enters(bound, i);
    bound.before.nan |= faults.nan;
    bound.before.infinite |= faults.infinite;
  }
  if (is_fused(*bound.instruction)) save_overwritten(bound);
  execute(bound);
  if (bound.instruction->action == Action::Start) return;
  for (std::size_t i = 0; i < operation.outputs.size(); ++i) {
    if (operation.outputs[i] == nullptr) continue;
    const Faults faults =
        read_faults(program_.values[operation.instruction->outputs[i]].type, operation.outputs[i]);
    const bool had_infinity = operation.before.nan || operation.before.infinite;
    if ((faults.nan && !operation.before.nan) || (faults.infinite && !had_infinity))
      throw_not_finite(operation, i, faults.nan && !operation.before.nan);
  }
}

// Throw NotFinite if operand number `input` of the instruction is an argument or a variable of the
// compiled step. The caller has found a NaN in this operand.
void Executor::throw_if_nan_enters(const BoundInstruction& bound, std::size_t input) const {
  const Instruction& instruction = *bound.instruction;
  const Value& value = program_.values[instruction.inputs[input]];
  const Member* reader = reader_of(instruction, input);
  if (value.memory == MemoryKind::Input)
    fail_not_finite(instruction, reader,
                    concat("argument ", value.position, " of the step holds a NaN; it is read by"));
  if (value.memory == MemoryKind::Variable)
    fail_not_finite(instruction, reader, "there is a NaN in a variable read by");
}

// Copy the operands that the kernel overwrites with its results. If a result has a NaN or an
// infinity, first_fault() runs the kernel's ops again, one at a time, with these copies.
void Executor::save_overwritten(BoundInstruction& bound) {
  bound.saved.clear();
  const auto type_of = [&](int value) { return program_.values[value].type; };
  for (std::size_t i = 0; i < bound.inputs.size(); ++i) {
    const auto* begin = static_cast<const std::byte*>(bound.inputs[i]);
    const std::size_t bytes = type_of(bound.instruction->inputs[i]).bytes();
    for (std::size_t j = 0; j < bound.outputs.size(); ++j) {
      const auto* result = static_cast<const std::byte*>(bound.outputs[j]);
      const std::size_t result_bytes = type_of(bound.instruction->outputs[j]).bytes();
      if (result == nullptr || result >= begin + bytes || begin >= result + result_bytes) continue;
      bound.saved.push_back({i, device::Buffer(device_, bytes)});
      queue_->copy(bound.saved.back().bytes.data(), begin, bytes);
      break;
    }
  }
}

// Throw NotFinite with a message that names the op whose result has the first NaN or infinity.
void Executor::throw_not_finite(const BoundInstruction& bound, std::size_t output, bool nan) {
  const Instruction& instruction = *bound.instruction;
  const Member* member = maker_of(instruction, output);
  if (is_fused(instruction)) {
    std::vector<const void*> inputs = bound.inputs;
    for (const BoundInstruction::SavedOperand& saved : bound.saved)
      inputs[saved.input] = saved.bytes.data();
    const auto found = first_fault(
        instruction, query_of(instruction), inputs, device_, *queue_, table_,
        [this](const TensorType& type, const void* data) { return read_faults(type, data); });
    if (found) {
      member = found->member;
      nan = found->nan;
    }
  }
  fail_not_finite(instruction, member,
                  concat(nan ? "a NaN" : "an infinity", " first appears in the result of"));
}

Faults Executor::read_faults(const TensorType& type, const void* data) {
  if (!device_.host_addressable()) {
    checked_value_.resize(std::max(checked_value_.size(), type.bytes()));
    queue_->copy_to_host(checked_value_.data(), data, type.bytes());
    data = checked_value_.data();
  }
  queue_->synchronize();
  return faults_of(type, data);
}

}  // namespace ngd::runtime
