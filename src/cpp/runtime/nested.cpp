// SPDX-License-Identifier: Apache-2.0
#include "runtime/nested.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/bits.hpp"
#include "base/error.hpp"
#include "runtime/executor.hpp"

namespace ngd::runtime {

namespace {

// Divides a piece of memory into consecutive blocks, one per call of take().
class SpareMemory {
 public:
  SpareMemory(void* data, std::size_t bytes)
      : next_(static_cast<std::byte*>(data)), bytes_left_(bytes) {}
  // Return the address of the next `bytes` bytes. Blocks begin at multiples of kAlignment from the
  // begin of the memory. Throws Internal if too few bytes are left.
  void* take(std::size_t bytes) {
    const std::size_t rounded = round_up(bytes, device::kAlignment);
    check(rounded <= bytes_left_, "nested: expected ", rounded, " spare bytes; got ", bytes_left_);
    bytes_left_ -= rounded;
    return std::exchange(next_, next_ + rounded);
  }

 private:
  std::byte* next_;
  std::size_t bytes_left_;
};

// Return the address `offset` bytes after the begin of a tensor.
const std::byte* at(const void* tensor, std::size_t offset) {
  return static_cast<const std::byte*>(tensor) + offset;
}
void* at(void* tensor, std::size_t offset) { return static_cast<std::byte*>(tensor) + offset; }

class Scan : public Nested {
 public:
  Scan(const Instruction& instruction, const kernels::KernelQuery& query, const RunContext& context,
       SpareMemory spare, void* shared)
      : queue_(context.queue),
        interrupts_(context.interrupts),
        length_(static_cast<std::size_t>(instruction.attrs.integer("length"))),
        is_reverse_(instruction.attrs.integer("reverse") != 0),
        body_(instruction.bodies.at(0), context, spare.take(instruction.bodies.at(0).private_bytes),
              shared),
        inputs_(body_.program().inputs),
        outputs_(body_.program().outputs) {
    const auto carries = static_cast<std::size_t>(instruction.attrs.integer("carries"));
    const auto slices = static_cast<std::size_t>(instruction.attrs.integer("slices"));
    check(query.inputs.size() == inputs_.size() && carries + slices <= inputs_.size() &&
              query.outputs.size() == outputs_.size() + carries + 2,
          "scan: the program does not fit its operands");
    const std::size_t iterations = std::max<std::size_t>(length_, 1);
    for (std::size_t i = 0; i < carries; ++i) {
      const std::size_t bytes = query.inputs[i].bytes();
      carries_.push_back({bytes, {spare.take(bytes), spare.take(bytes)}});
    }
    for (std::size_t i = 0; i < slices; ++i)
      slices_.push_back(query.inputs[carries + i].bytes() / iterations);
    for (std::size_t i = carries; i < outputs_.size(); ++i) {
      const std::size_t bytes = query.outputs[i].bytes() / iterations;
      results_.push_back({bytes, spare.take(bytes)});
    }
  }

  void run(const void* const* inputs, void* const* outputs) override {
    const std::size_t carries = carries_.size(), fixed = carries + slices_.size();
    void* const* histories = outputs + outputs_.size();
    std::copy(inputs + fixed, inputs + inputs_.size(), inputs_.begin() + fixed);
    for (std::size_t i = 0; i < carries; ++i) begin(i, inputs[i], outputs[i], histories[i]);
    for (std::size_t iteration = 0; iteration < length_; ++iteration) {
      // Check for signals here, because the body's executor does not check before instructions that
      // are short (some microseconds).
      if (iteration % kIterationsPerCheck == 0) interrupts_.check();
      const std::size_t slice = slice_of(iteration);
      for (std::size_t i = 0; i < slices_.size(); ++i)
        inputs_[carries + i] = at(inputs[carries + i], slice * slices_[i]);
      for (std::size_t i = 0; i < results_.size(); ++i) {
        void* array = outputs[carries + i];
        outputs_[carries + i] = array ? at(array, slice * results_[i].bytes) : results_[i].unread;
      }
      for (std::size_t i = 0; i < carries; ++i)
        outputs_[i] = output_of(i, iteration, outputs[i], histories[i]);
      body_.run_inside(inputs_.data(), outputs_.data());
      std::copy(outputs_.begin(), outputs_.begin() + carries, inputs_.begin());
    }
  }

  std::vector<const Executor*> programs() const override { return {&body_}; }

 private:
  struct Carry {
    std::size_t bytes;
    // Iteration t writes the new carried value to buffers[t % 2], or directly to an output of the
    // Scan if an instruction reads this output. For the last iteration, this output is the final
    // value. For the other iterations, it is a slice of the history.
    void* buffers[2];
  };
  struct Result {
    std::size_t bytes;  // the bytes of one slice
    void* unread;       // memory for a result that no instruction reads
  };

  // Return the index of the slice that an iteration reads and writes.
  std::size_t slice_of(std::size_t iteration) const {
    return is_reverse_ ? length_ - 1 - iteration : iteration;
  }

  // Prepare carried value number `i` (iterations pass it on): the first iteration reads it at
  // `initial`. If the Scan has iterations, also copy the value to the first iteration's slice of
  // `history`. Otherwise copy it to `last`, the output for the final value. `last` or `history` is
  // null if no instruction reads it; then there is no copy.
  void begin(std::size_t i, const void* initial, void* last, void* history) {
    inputs_[i] = initial;
    const std::size_t bytes = carries_[i].bytes;
    if (length_ == 0 && last != nullptr) queue_.copy(last, initial, bytes);
    if (length_ > 0 && history != nullptr)
      queue_.copy(at(history, slice_of(0) * bytes), initial, bytes);
  }

  // Return the address to which an iteration writes carried value number `i`, which the next
  // iteration reads. `last` and `history` are the Scan's outputs for this value, and are null if no
  // instruction reads them. The iteration reads the old value at another address, because it may
  // read the old value after it has written the new one.
  void* output_of(std::size_t i, std::size_t iteration, void* last, void* history) const {
    const Carry& carry = carries_[i];
    if (iteration + 1 == length_) return last != nullptr ? last : carry.buffers[iteration % 2];
    if (history != nullptr) return at(history, slice_of(iteration + 1) * carry.bytes);
    return carry.buffers[iteration % 2];
  }

  static constexpr std::size_t kIterationsPerCheck = 64;

  device::Queue& queue_;
  Interrupts& interrupts_;
  std::size_t length_;
  bool is_reverse_;
  Executor body_;
  std::vector<const void*> inputs_;  // the operands of the current iteration
  std::vector<void*> outputs_;
  std::vector<Carry> carries_;
  std::vector<std::size_t> slices_;  // for each tensor, the bytes of one slice
  std::vector<Result> results_;
};

class Cond : public Nested {
 public:
  Cond(const Instruction& instruction, const kernels::KernelQuery& query, const RunContext& context,
       SpareMemory spare, void* shared)
      : queue_(context.queue) {
    std::size_t arena_bytes = 0;
    for (const Program& body : instruction.bodies) {
      arena_bytes = std::max(arena_bytes, body.private_bytes);
      check(body.inputs + 1 == query.inputs.size() && body.outputs + 2 == query.outputs.size(),
            "cond: a program does not fit its operands");
    }
    void* arena = spare.take(arena_bytes);
    for (const Program& body : instruction.bodies)
      bodies_.push_back(std::make_unique<Executor>(body, context, arena, shared));
    for (std::size_t i = 0; i + 2 < query.outputs.size(); ++i)
      unread_.push_back(spare.take(query.outputs[i].bytes()));
    outputs_.resize(unread_.size());
  }

  void run(const void* const* inputs, void* const* outputs) override {
    bool predicate = false;
    queue_.copy_to_host(&predicate, inputs[0], sizeof predicate);
    queue_.synchronize();
    for (std::size_t i = 0; i < outputs_.size(); ++i)
      outputs_[i] = outputs[i] != nullptr ? outputs[i] : unread_[i];
    bodies_.at(predicate ? 1 : 0)->run_inside(inputs + 1, outputs_.data());
  }

  std::vector<const Executor*> programs() const override {
    return {bodies_.at(0).get(), bodies_.at(1).get()};
  }

 private:
  device::Queue& queue_;
  std::vector<std::unique_ptr<Executor>> bodies_;  // [0]: the branch for false, [1]: for true
  std::vector<void*> unread_, outputs_;
};

}  // namespace

std::unique_ptr<Nested> make_nested(const Instruction& instruction,
                                    const kernels::KernelQuery& query, const RunContext& context,
                                    void* const* arenas) {
  const std::size_t outputs = query.outputs.size();
  check(outputs >= 2, "nested: expected two outputs that are memory; got ", outputs);
  const SpareMemory spare(arenas[0], query.outputs[outputs - 2].bytes());
  for (const Program& body : instruction.bodies)
    check(body.shared_bytes <= query.outputs[outputs - 1].bytes(), "nested: expected ",
          body.shared_bytes, " shared bytes; got ", query.outputs[outputs - 1].bytes());
  if (instruction.action == Action::Scan)
    return std::make_unique<Scan>(instruction, query, context, spare, arenas[1]);
  return std::make_unique<Cond>(instruction, query, context, spare, arenas[1]);
}

}  // namespace ngd::runtime
