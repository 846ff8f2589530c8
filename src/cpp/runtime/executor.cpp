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
// A kernel with fewer bytes of operands and results takes some ten microseconds at most. To read the
// clock takes 9 ns, a seventh of the time of a loop's iteration on a few elements.
constexpr std::size_t kShortBytes = 16 << 10;

// One call of an executor; another one meanwhile is refused.
class Running {
 public:
  explicit Running(std::atomic<bool>& flag) : flag_(flag) {
    if (flag.exchange(true, std::memory_order_acquire))
      fail(ErrorKind::Busy, "Executable: a second call while one runs in another thread");
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
  ~Running() { flag_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool>& flag_;
};

Error blamed(const Error& error, const Instruction& instruction) {
  return {error.kind(),
          concat(error.what(), " (in ", instruction.op, ", made at ", instruction.site, ")")};
}

[[noreturn]] void not_finite(const Instruction& instruction, const Member* member,
                             const std::string& what) {
  fail(ErrorKind::NotFinite, "NGD_CHECK_FINITE: ", what, " ",
       member == nullptr ? instruction.op : member->op, ", made at ",
       member == nullptr ? instruction.site : member->site);
}
}  // namespace

// An instruction made ready: its kernel or its collective, and where its operands are. Operands in
// the lanes Input and Output are patched at every call; all others never move.
struct Executor::Step {
  struct Patch {
    bool output_operand;
    std::size_t operand;
    bool from_outputs;
    std::size_t number, offset;
  };
  const Instruction* instruction = nullptr;
  const kernels::Kernel* kernel = nullptr;  // of a Run
  std::unique_ptr<Nested> nested;           // of a Scan or a Cond
  Step* started = nullptr;                  // of a Wait
  PendingCollective* pending = nullptr;     // of a Start or a Wait
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  std::vector<Patch> patches;
  bool writes_variable = false;
  bool is_short = false;      // takes microseconds: a signal may wait for the next instruction
  std::int64_t begin_ns = 0;  // of the last run that was recorded
  Faults before;              // of the operands, where they are looked at
  struct Kept {
    std::size_t input;
    device::Buffer bytes;
  };
  std::vector<Kept> kept;  // copies of operands that the kernel overwrites, where it may run again
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
      asynchronous_(queue_->asynchronous()) {
  verify(program_);
  check(variables_.size() == program_.variables, "executor: expected ", program_.variables,
        " variables; got ", variables_.size());
  if (program_.shared_bytes > 0) {
    check(!communicators.empty(), "executor: a shared lane without a communicator");
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

Executor::Executor(Program program, const Surroundings& surroundings, void* arena, void* shared)
    : program_(std::move(program)),
      device_(surroundings.device),
      stages_arguments_(false),
      check_finite_(config::check_finite()),
      table_(surroundings.table),
      arena_(arena),
      shared_(shared),
      running_(own_running_),
      collectives_(&surroundings.collectives),
      own_interrupts_(nullptr),
      interrupts_(surroundings.interrupts),
      queue_(&surroundings.queue),
      asynchronous_(queue_->asynchronous()) {
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
  steps_.reserve(program_.instructions.size());  // Wait steps point at Start steps
  for (const Instruction& instruction : program_.instructions) bind_step(instruction);
}

void* Executor::static_pointer(const Value& value) const {
  const auto part_of = [&](void* whole) { return static_cast<std::byte*>(whole) + value.offset; };
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
  const Running running(running_);
  variables_ = variables;
  const auto move = [&](const std::vector<int>& values, auto& pointers) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const Value& value = program_.values[static_cast<std::size_t>(values[i])];
      if (value.memory == MemoryKind::Variable) pointers[i] = static_pointer(value);
    }
  };
  for (Step& step : steps_) {
    move(step.instruction->inputs, step.inputs);
    move(step.instruction->outputs, step.outputs);
  }
}

kernels::KernelQuery Executor::query_of(const Instruction& instruction) const {
  kernels::KernelQuery query{instruction.op, {}, {}, instruction.attrs};
  for (const int value : instruction.inputs) query.inputs.push_back(program_.values[value].type);
  for (const int value : instruction.outputs) query.outputs.push_back(program_.values[value].type);
  return query;
}

void Executor::bind_step(const Instruction& instruction) {
  Step& step = steps_.emplace_back();
  step.instruction = &instruction;
  const kernels::KernelQuery query = query_of(instruction);
  for (const bool output : {false, true}) {
    const auto& operands = output ? instruction.outputs : instruction.inputs;
    for (std::size_t i = 0; i < operands.size(); ++i) {
      const Value& value = program_.values[operands[i]];
      void* pointer = static_pointer(value);
      output ? step.outputs.push_back(pointer) : step.inputs.push_back(pointer);
      const bool moves = value.memory == MemoryKind::Input || value.memory == MemoryKind::Output;
      if (moves && !stages_arguments_)
        step.patches.push_back(
            {output, i, value.memory == MemoryKind::Output, value.position, value.offset});
      step.writes_variable |= output && value.memory == MemoryKind::Variable;
    }
  }
  std::size_t bytes = 0;
  for (const auto* types : {&query.inputs, &query.outputs})
    for (const TensorType& type : *types) bytes += type.bytes();
  step.is_short = instruction.action == Action::Run && bytes <= kShortBytes;
  switch (instruction.action) {
    case Action::Start:
      step.pending = &collectives_->add(instruction, query.inputs.at(0), query.outputs.at(0));
      return;
    case Action::Wait:
      step.started = &steps_[instruction.start];
      step.pending = step.started->pending;
      return;
    case Action::Run:
      return bind_kernel(step, query);
    case Action::Scan:
    case Action::Cond:
      step.nested =
          make_nested(instruction, query, {device_, *queue_, table_, *collectives_, interrupts_},
                      step.outputs.data() + step.outputs.size() - 2);
  }
}

void Executor::bind_kernel(Step& step, const kernels::KernelQuery& query) {
  const auto [kernel, is_new] = kernels_.try_emplace(query.key());
  if (is_new) kernel->second = make_kernel(step, query);
  step.kernel = kernel->second.get();
}

std::unique_ptr<kernels::Kernel> Executor::make_kernel(const Step& step,
                                                       const kernels::KernelQuery& query) {
  kernels::Offer offer = kernels::find(table_, query, kernels::this_machine()).offer;
  if (offer.kernel == nullptr)
    fail(ErrorKind::Unsupported, device_.name(), ": no kernel for ", query.op, " (made at ",
         step.instruction->site, "): ", offer.refusal);
  const std::size_t scratch_bytes = offer.kernel->scratch_bytes();
  if (scratch_bytes > scratch_.bytes()) scratch_ = device::Buffer(device_, scratch_bytes);
  offer.kernel->prepare();
  return std::move(offer.kernel);
}

void Executor::run(const void* const* inputs, void* const* outputs) {
  const Running running(running_);
  variables_touched_ = false;
  const PendingCollectives::Run pending_run(*collectives_);
  notify_on_failure([&] { run_to_the_end(inputs, outputs); },
                    [&](const FailureView& failure) {
                      if (!collectives_->was_refused()) collectives_->abort(failure.text);
                      drain();
                    });
  variables_touched_ = false;
}

void Executor::run_to_the_end(const void* const* inputs, void* const* outputs) try {
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
  if (asynchronous_) queue_->synchronize();
} catch (const device::QueueError& error) {
  if (error.origin() == nullptr) throw;
  throw blamed(error, *static_cast<const Instruction*>(error.origin()));
}

// What a failed run has enqueued uses the caller's arrays and the variables. What fails of it is no
// news: the run has failed.
void Executor::drain() noexcept {
  if (!asynchronous_) return;
  collectives_->drain();
  try {
    queue_->synchronize();
  } catch (const std::exception&) {
  }
}

void Executor::run_inside(const void* const* inputs, void* const* outputs) {
  if (const std::uint64_t on = recording().current(); on != 0) [[unlikely]]
    return run_recorded(on, inputs, outputs);
  for (Step& step : steps_) perform(step, inputs, outputs);
}

void Executor::perform(Step& step, const void* const* inputs, void* const* outputs) {
  // The updates of variables come last. They are not interrupted, so that Ctrl-C poisons no variable.
  if (!step.is_short && !variables_touched_) interrupts_.check();
  for (const Step::Patch& patch : step.patches) {
    const void* whole = patch.from_outputs ? outputs[patch.number] : inputs[patch.number];
    const std::byte* part = static_cast<const std::byte*>(whole) + patch.offset;
    if (patch.output_operand)
      step.outputs[patch.operand] = const_cast<std::byte*>(part);
    else
      step.inputs[patch.operand] = part;
  }
  variables_touched_ |= step.writes_variable;
  if (check_finite_) [[unlikely]]
    execute_checked(step);
  else
    execute(step);
}

// Times a run, up to the instruction that throws, if one does.
class Executor::Watch {
 public:
  Watch(Executor& executor, std::uint64_t recording)
      : lock_(executor.recorded_mutex_), executor_(executor), record_(executor.record_) {
    if (executor.recorded_in_ != recording) {
      record_.whole = {};
      record_.instructions.assign(executor.steps_.size(), {});
      executor.recorded_in_ = recording;
    }
    if (ngd::runtime::recording().wants_events()) {
      events_.reserve(executor.steps_.size() + 1);
      thread_ = static_cast<std::uint64_t>(gettid());
    }
    begin_ns_ = last_ns_ = now_ns();
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  ~Watch() {
    if (next_ < executor_.steps_.size()) ended();
    record_.whole.add(last_ns_ - begin_ns_);
    if (events_.capacity() == 0) return;
    events_.push_back({executor_.number_, Event::kWhole, thread_, begin_ns_, last_ns_});
    ngd::runtime::recording().add(executor_.number_, executor_.program_, events_);
  }

  // An instruction has ended: the next one in turn.
  void ended() {
    Step& step = executor_.steps_[next_];
    Timing& timing = record_.instructions[next_];
    const std::int64_t now = now_ns();
    step.begin_ns = last_ns_;
    timing.add(now - last_ns_);
    if (step.started != nullptr)
      timing.pending_ns += static_cast<std::uint64_t>(now - step.started->begin_ns);
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
  std::vector<Event> events_;  // whose memory is there before the first
  std::uint64_t thread_ = 0;
  std::size_t next_ = 0;
  std::int64_t begin_ns_ = 0, last_ns_ = 0;
};

void Executor::run_recorded(std::uint64_t recording, const void* const* inputs,
                            void* const* outputs) {
  Watch watch(*this, recording);
  for (Step& step : steps_) {
    perform(step, inputs, outputs);
    if (asynchronous_) queue_->synchronize();
    watch.ended();
  }
}

Record Executor::record() const {
  const std::unique_lock lock(recorded_mutex_, std::try_to_lock);
  if (!lock.owns_lock())
    fail(ErrorKind::Busy, "Executable.report: the step runs now, in another thread");
  Record record = record_;
  record.instructions.resize(steps_.size());
  for (const Step& step : steps_) {
    if (step.nested == nullptr) continue;
    for (const Executor* program : step.nested->programs())
      record.bodies.push_back(program->record());
  }
  return record;
}

void Executor::execute(Step& step) {
  queue_->set_origin(step.instruction);
  switch (step.instruction->action) {
    case Action::Start:
      return collectives_->start(*step.pending, step.inputs[0], step.outputs[0]);
    case Action::Wait:
      return collectives_->wait(*step.pending);
    case Action::Scan:
    case Action::Cond:
      return step.nested->run(step.inputs.data(), step.outputs.data());
    case Action::Run:
      break;
  }
  try {
    step.kernel->run({step.inputs.data(), step.outputs.data(), scratch_.data(), queue_});
  } catch (const std::out_of_range& error) {  // which begins with the public call
    throw std::out_of_range(concat(error.what(), " (made at ", step.instruction->site, ")"));
  } catch (const Error& error) {
    throw blamed(error, *step.instruction);
  }
}

// A value that is no finite number is told of where it begins: where an instruction makes a NaN of
// operands that have none, or an infinity of finite ones. One that comes in from outside, a NaN in
// an argument or a variable, is told of where it is first read. What a Start's operand holds is
// compared with what its Wait gives.
void Executor::execute_checked(Step& step) {
  const Step& whole = step.started == nullptr ? step : *step.started;
  step.before = faults_of(step.instruction->attrs);
  for (std::size_t i = 0; i < step.inputs.size(); ++i) {
    const Faults faults =
        look_at(program_.values[step.instruction->inputs[i]].type, step.inputs[i]);
    if (faults.nan) expect_no_nan(step, i);
    step.before.nan |= faults.nan;
    step.before.infinite |= faults.infinite;
  }
  if (is_fused(*step.instruction)) keep_overwritten(step);
  execute(step);
  if (step.instruction->action == Action::Start) return;
  for (std::size_t i = 0; i < whole.outputs.size(); ++i) {
    if (whole.outputs[i] == nullptr) continue;
    const Faults faults =
        look_at(program_.values[whole.instruction->outputs[i]].type, whole.outputs[i]);
    const bool had_infinity = whole.before.nan || whole.before.infinite;
    if ((faults.nan && !whole.before.nan) || (faults.infinite && !had_infinity))
      refuse(whole, i, faults.nan && !whole.before.nan);
  }
}

// Throws where the NaN of an operand came into the step from outside.
void Executor::expect_no_nan(const Step& step, std::size_t input) const {
  const Instruction& instruction = *step.instruction;
  const Value& value = program_.values[instruction.inputs[input]];
  const Member* reader = reader_of(instruction, input);
  if (value.memory == MemoryKind::Input)
    not_finite(instruction, reader,
               concat("argument ", value.position, " of the step holds a NaN; it is read by"));
  if (value.memory == MemoryKind::Variable)
    not_finite(instruction, reader, "there is a NaN in a variable read by");
}

// Copies the operands in whose memory the kernel puts results.
void Executor::keep_overwritten(Step& step) {
  step.kept.clear();
  const auto type_of = [&](int value) { return program_.values[value].type; };
  for (std::size_t i = 0; i < step.inputs.size(); ++i) {
    const auto* begin = static_cast<const std::byte*>(step.inputs[i]);
    const std::size_t bytes = type_of(step.instruction->inputs[i]).bytes();
    for (std::size_t j = 0; j < step.outputs.size(); ++j) {
      const auto* result = static_cast<const std::byte*>(step.outputs[j]);
      const std::size_t result_bytes = type_of(step.instruction->outputs[j]).bytes();
      if (result == nullptr || result >= begin + bytes || begin >= result + result_bytes) continue;
      step.kept.push_back({i, device::Buffer(device_, bytes)});
      queue_->copy(step.kept.back().bytes.data(), begin, bytes);
      break;
    }
  }
}

// Names the op at which the NaN, or the infinity, of a result begins.
void Executor::refuse(const Step& step, std::size_t output, bool nan) {
  const Instruction& instruction = *step.instruction;
  const Member* member = maker_of(instruction, output);
  if (is_fused(instruction)) {
    std::vector<const void*> inputs = step.inputs;
    for (const Step::Kept& kept : step.kept) inputs[kept.input] = kept.bytes.data();
    const auto found = first_fault(
        instruction, query_of(instruction), inputs, device_, *queue_, table_,
        [this](const TensorType& type, const void* data) { return look_at(type, data); });
    if (found) {
      member = found->member;
      nan = found->nan;
    }
  }
  not_finite(instruction, member,
             concat(nan ? "a NaN" : "an infinity", " begins in the result of"));
}

Faults Executor::look_at(const TensorType& type, const void* data) {
  if (!device_.host_addressable()) {
    looked_at_.resize(std::max(looked_at_.size(), type.bytes()));
    queue_->copy_to_host(looked_at_.data(), data, type.bytes());
    data = looked_at_.data();
  }
  queue_->synchronize();
  return faults_of(type, data);
}

}  // namespace ngd::runtime
