// SPDX-License-Identifier: Apache-2.0
// Tests the executor on devices of several kinds, with one list of cases. remote_device.hpp defines
// the kinds.
#include "runtime/executor.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <string>

#include "base/error.hpp"
#include "on_device.hpp"
#include "remote_device.hpp"
#include "steps.hpp"

namespace ngd {
namespace {

using runtime::Action;
using runtime::Executor;
using runtime::Instruction;
using runtime::MemoryKind;
using runtime::Program;
using testing::kVector;
using testing::OnDevice;
using testing::run;
using testing::scan_of_two;
using testing::training_step;

INSTANTIATE_TEST_SUITE_P(Kinds, OnDevice, ::testing::ValuesIn(testing::kDeviceKinds),
                         testing::name_of_kind);

TEST_P(OnDevice, RunsAStep) {
  const auto group = comm::make_self_communicator();
  device::Buffer variable(device, 12);
  const float initial[] = {1, 1, 1};
  variable.write(initial);
  Executor executor(training_step(), device, testing::remote_table(), {group.get()},
                    {variable.data()});
  const float input[] = {1, 2, 3};
  float output[3];
  const void* inputs[] = {input};
  void* outputs[] = {output};
  executor.run(inputs, outputs);
  EXPECT_EQ(output[0], 12);
  EXPECT_EQ(output[2], 34);
  executor.run(inputs, outputs);  // the variable was updated: 1 + 12 + 10
  EXPECT_EQ(output[0], 23);
  float kept[3];
  variable.read(kept);
  EXPECT_EQ(kept[0], 23);
  EXPECT_EQ(kept[2], 3 + 34 + 30);
}

TEST_P(OnDevice, RunsALoopWhicheverResultsAreRead) {
  const float start[] = {1, 2, 3}, slices[] = {100, 200, 300, 1000, 2000, 3000};
  const void* inputs[] = {start, slices};
  for (int unread = 0; unread < 8; ++unread)
    for (const bool reverse : {false, true}) {
      float last[3] = {}, made[6] = {}, history[6] = {};
      void* outputs[] = {last, made, history};
      const auto memory = [&](int bit) {
        return (unread & bit) != 0 ? MemoryKind::Nowhere : MemoryKind::Output;
      };
      Executor executor(scan_of_two(reverse, memory(1), memory(2), memory(4)), device,
                        testing::remote_table(), {}, {});
      executor.run(inputs, outputs);
      const int first = reverse ? 3 : 0, second = 3 - first;  // the offset of the first slice
      if ((unread & 1) == 0) {
        EXPECT_EQ(last[1], 2 + 200 + 20 + 2000 + 20);
      }
      if ((unread & 2) == 0) {
        EXPECT_EQ(made[first], 1 + slices[first] + 10);
        EXPECT_EQ(made[second + 2], 3 + 300 + 30 + 3000 + 30);
      }
      if ((unread & 4) == 0) {
        EXPECT_EQ(history[first + 1], 2);
        EXPECT_EQ(history[second + 1], 2 + slices[first + 1] + 20);
      }
    }
}

// Of two programs of one operand, the first adds it to itself, and the second returns it. A kernel
// computes which one runs.
Program choice() {
  Program doubles, hands_on;
  for (Program* body : {&doubles, &hands_on}) {
    body->values = {{kVector, MemoryKind::Input, 0}, {kVector, MemoryKind::Output, 0}};
    body->inputs = body->outputs = 1;
  }
  doubles.instructions = {run("add", {0, 0}, {1})};
  hands_on.instructions = {run("copy", {0}, {1})};
  Program program;
  program.values = {{{DType::Bool, {}}, MemoryKind::Private, 64},
                    {kVector, MemoryKind::Input, 0},
                    {kVector, MemoryKind::Output, 0},
                    {{DType::U8, {64}}, MemoryKind::Private, 0},
                    {{DType::U8, {0}}, MemoryKind::Nowhere}};
  program.inputs = program.outputs = 1;
  program.private_bytes = 65;
  program.instructions = {
      run("positive", {1}, {0}),
      {Action::Cond, "cond", {0, 1}, {2, 3, 4}, {}, -1, 0, "model.py:4", {doubles, hands_on}}};
  return program;
}

TEST_P(OnDevice, RunsOneOfTwoPrograms) {
  Executor executor(choice(), device, testing::remote_table(), {}, {});
  for (const float first : {-1.0F, 1.0F, -2.0F}) {
    const float input[] = {first, 2, 3};
    float output[3] = {};
    const void* inputs[] = {input};
    void* outputs[] = {output};
    executor.run(inputs, outputs);
    EXPECT_EQ(output[2], first > 0 ? 3 : 6);
  }
}

// A group of one rank, used by another thread too: submit and wait are refused as often as the test
// says.
class Crowded final : public comm::Communicator {
 public:
  std::vector<int> refusals;                    // before each call that succeeds, in turn
  int aborts = 0, submissions = 0, blocks = 0;  // blocks: of memory that is allocated now
  bool loses_a_rank = false;                    // in wait

  Crowded() : Communicator({"crowded"}) {}
  std::optional<comm::Work> try_submit(const comm::Collective& collective) override {
    if (refuse()) return std::nullopt;
    ++submissions;
    return inner_->try_submit(collective);
  }
  comm::Progress try_wait(comm::Work work, const comm::WaitLimits& limits) override {
    if (refuse()) return comm::Progress::Busy;
    if (loses_a_rank) fail(ErrorKind::RankLost, "rank 1 is gone");
    return inner_->try_wait(work, limits);
  }
  std::optional<std::unique_ptr<Communicator>> try_split(int, int) override { return nullptr; }
  comm::SharedBlock allocate(std::size_t bytes) override {
    ++blocks;
    return inner_->allocate(bytes);
  }
  void release(comm::SharedBlock block) noexcept override {
    --blocks;
    inner_->release(block);
  }
  void give_up(ErrorKind, std::string_view, std::span<const int>) noexcept override { ++aborts; }
  void close() noexcept override {}

 private:
  bool refuse() {
    if (refusals.empty()) return false;
    if (refusals.front()-- > 0) return true;
    refusals.erase(refusals.begin());
    return false;
  }
  std::unique_ptr<Communicator> inner_ = comm::make_self_communicator();
};

// A kernel fails before the collective, after it, and when the variable is written. If a queue is
// asynchronous, the write is enqueued before the second failure is known.
TEST_P(OnDevice, ReportsIfAFailedStepHasWrittenVariables) {
  device::Buffer variable(device, 12);
  const float initial[] = {1, 1, 1}, input[] = {1, 2, 3};
  float output[3];
  const void* inputs[] = {input};
  void* outputs[] = {output};
  for (const int place : {1, 3, 6}) {
    variable.write(initial);
    Crowded group;
    Program program = training_step();
    program.instructions.insert(program.instructions.begin() + place, run("fails", {3}, {5}));
    if (place == 1) program.instructions[3].start = 2;
    Executor executor(program, device, testing::remote_table(), {&group}, {variable.data()});
    for (int calls = 1; calls <= 2; ++calls) {  // a failure is reported once
      try {
        executor.run(inputs, outputs);
        FAIL() << "expected an error";
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::InvalidArgument);
        EXPECT_STREQ(error.what(), "index 7 is out of range (in fails, made at model.py:7)");
      }
      EXPECT_EQ(group.aborts, calls);
      EXPECT_EQ(group.submissions, place == 1 ? 0 : calls);
      EXPECT_EQ(executor.variables_touched(), place == 6 || (place == 3 && device.asynchronous()));
    }
  }
}

// If it is refused at its first collective, a run has not started. Later it waits instead.
TEST_P(OnDevice, IsRefusedBeforeItHasStartedOrNotAtAll) {
  Crowded group;
  device::Buffer variable(device, 12);
  const float initial[] = {1, 1, 1};
  float value[3] = {};
  variable.write(initial);
  Executor executor(training_step(), device, testing::remote_table(), {&group}, {variable.data()});
  const float input[] = {1, 2, 3};
  float output[3] = {};
  const void* inputs[] = {input};
  void* outputs[] = {output};
  group.refusals = {1};
  try {
    executor.run(inputs, outputs);
    FAIL() << "was not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Busy);
  }
  EXPECT_EQ(group.aborts, 0);
  EXPECT_FALSE(executor.variables_touched());
  variable.read(value);
  EXPECT_EQ(value[0], 1);
  group.refusals = {0, 3};
  executor.run(inputs, outputs);
  EXPECT_EQ(output[2], 34);
  variable.read(value);
  EXPECT_EQ(value[2], 34);
  EXPECT_EQ(group.aborts, 0);
}

// No write after its first collective starts either.
TEST_P(OnDevice, WritesNoVariableBeforeItHasStarted) {
  Crowded group;
  device::Buffer variable(device, 12);
  const float initial[] = {1, 1, 1}, input[] = {1, 2, 3};
  float value[3] = {}, output[3] = {};
  variable.write(initial);
  Program program = training_step();
  program.instructions.insert(program.instructions.begin() + 2, run("copy", {0}, {1}));
  Executor executor(program, device, testing::remote_table(), {&group}, {variable.data()});
  const void* inputs[] = {input};
  void* outputs[] = {output};
  group.refusals = {1};
  EXPECT_THROW(executor.run(inputs, outputs), Error);
  EXPECT_FALSE(executor.variables_touched());
  EXPECT_EQ(group.aborts, 0);
  variable.read(value);
  EXPECT_EQ(value[2], 1);
}

// Work that a failed run has enqueued uses the caller's arrays and the variables.
TEST_P(OnDevice, LeavesNoPendingWorkWhenAStepFails) {
  Crowded group;
  group.loses_a_rank = true;
  device::Buffer variable(device, 12);
  const float initial[] = {1, 1, 1}, input[] = {1, 2, 3};
  float output[3] = {};
  variable.write(initial);
  Program program = training_step();
  for (int i = 0; i < 20; ++i)
    program.instructions.insert(program.instructions.begin() + 2, run("add", {0, 2}, {5}));
  Executor executor(program, device, testing::remote_table(), {&group}, {variable.data()});
  const void* inputs[] = {input};
  void* outputs[] = {output};
  try {
    executor.run(inputs, outputs);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::RankLost);
  }
  EXPECT_EQ(device.under_way(), 0u);
  EXPECT_EQ(group.aborts, 1);
}

// output[1:4] = input[2:5] + variable[1:4]. The program names only these parts.
TEST_P(OnDevice, AddressesPartsOfNumberedMemory) {
  const TensorType part{DType::F32, {3}};
  Program program;
  program.values = {{part, MemoryKind::Input, 0, 8},
                    {part, MemoryKind::Variable, 0, 4},
                    {part, MemoryKind::Output, 0, 4},
                    {{DType::F32, {1}}, MemoryKind::Input, 0, 0},
                    {{DType::F32, {1}}, MemoryKind::Output, 0, 0}};
  program.inputs = program.outputs = program.variables = 1;
  program.instructions = {run("add", {0, 1}, {2}), run("copy", {3}, {4})};
  device::Buffer variable(device, 16);
  const float initial[] = {10, 20, 30, 40}, input[] = {1, 2, 3, 4, 5};
  variable.write(initial);
  float output[4] = {};
  const void* inputs[] = {input};
  void* outputs[] = {output};
  Executor executor(program, device, testing::remote_table(), {}, {variable.data()});
  executor.run(inputs, outputs);
  EXPECT_EQ(std::vector<float>(output, output + 4), (std::vector<float>{1, 23, 34, 45}));
}

// An executor that cannot be built leaves nothing enqueued and allocated.
TEST_P(OnDevice, NamesTheOpWithoutAKernel) {
  Program program = training_step();
  program.instructions.insert(program.instructions.begin(), run("erfinv", {0}, {4}));
  program.instructions[3].start = 2;
  device::Buffer variable(device, 12);
  Crowded group;
  try {
    Executor executor(program, device, testing::remote_table(), {&group}, {variable.data()});
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Unsupported);
    EXPECT_NE(std::string(error.what()).find("no kernel for erfinv (made at model.py:7)"),
              std::string::npos);
  }
  EXPECT_EQ(device.live_allocations(), 1u);  // the variable
  EXPECT_EQ(group.blocks, 0);
}

TEST_P(OnDevice, NamesTheFailingInstructionOfAnInnerProgram) {
  Program program = scan_of_two(false, MemoryKind::Output, MemoryKind::Output, MemoryKind::Output);
  program.instructions[0].bodies[0].instructions[1] = run("fails", {2, 3}, {5});
  program.instructions[0].bodies[0].instructions[1].site = "model.py:99";
  Executor executor(program, device, testing::remote_table(), {}, {});
  const float start[] = {1, 2, 3}, slices[6] = {};
  float last[3], made[6], history[6];
  const void* inputs[] = {start, slices};
  void* outputs[] = {last, made, history};
  try {
    executor.run(inputs, outputs);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "index 7 is out of range (in fails, made at model.py:99)");
  }
}

class CheckFinite {
 public:
  CheckFinite() { ::setenv("NGD_CHECK_FINITE", "1", 1); }
  CheckFinite(const CheckFinite&) = delete;
  ~CheckFinite() { ::unsetenv("NGD_CHECK_FINITE"); }
};

void expect_not_finite(Executor& executor, const void* const* inputs, void* const* outputs,
                       const std::string& why) {
  try {
    executor.run(inputs, outputs);
    ADD_FAILURE() << "expected: " << why;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::NotFinite);
    EXPECT_STREQ(error.what(), ("NGD_CHECK_FINITE: " + why).c_str());
  }
}

TEST_P(OnDevice, NamesTheInstructionThatComputesTheFirstNan) {
  const CheckFinite check;
  const float nan = std::numeric_limits<float>::quiet_NaN(), good[] = {1, 2, 3},
              bad[] = {1, nan, 3};
  float output[3];
  const void* inputs[] = {good};
  void* outputs[] = {output};
  for (const bool begins : {false, true}) {
    Crowded group;
    device::Buffer variable(device, 12);
    variable.write(good);
    Program program = training_step();
    if (begins) program.instructions[3] = run("nan", {3}, {5});
    Executor executor(program, device, testing::remote_table(), {&group}, {variable.data()});
    if (begins) {
      expect_not_finite(executor, inputs, outputs,
                        "a NaN first appears in the result of nan, made at model.py:7");
      continue;
    }
    executor.run(inputs, outputs);
    EXPECT_EQ(output[2], 36);
    variable.write(bad);
    expect_not_finite(executor, inputs, outputs,
                      "there is a NaN in a variable read by add, made at model.py:7");
    inputs[0] = bad;
    expect_not_finite(executor, inputs, outputs,
                      "argument 0 of the step holds a NaN; it is read by add, made at model.py:7");
    inputs[0] = good;
  }
}

TEST_P(OnDevice, NamesTheFirstNanOfAnInnerProgram) {
  const CheckFinite check;
  Program program = scan_of_two(true, MemoryKind::Output, MemoryKind::Nowhere, MemoryKind::Nowhere);
  program.instructions[0].bodies[0].instructions[0] = run("nan", {0}, {2});
  Executor executor(program, device, testing::remote_table(), {}, {});
  const float start[] = {1, 2, 3}, slices[6] = {};
  float last[3];
  const void* inputs[] = {start, slices};
  void* outputs[] = {last, nullptr, nullptr};
  expect_not_finite(executor, inputs, outputs,
                    "a NaN first appears in the result of nan, made at model.py:7");
}

// output = all_reduce(input). The operand of a second all_reduce is complete only if work is
// enqueued after it.
TEST_P(OnDevice, ContinuesAfterACollectiveWhoseOperandIsIncomplete) {
  if (!device.asynchronous()) GTEST_SKIP() << "the caller runs all kernels";
  Program program = training_step();
  program.values.push_back({kVector, MemoryKind::Private, 64});
  program.private_bytes = 128;
  Instruction start = program.instructions[1], wait = program.instructions[2];
  start.inputs = start.outputs = wait.outputs = {6};
  wait.start = 4;
  program.instructions.erase(program.instructions.begin() + 3, program.instructions.end());
  for (const Instruction& next :
       {run("followed", {3}, {6}), start, run("add", {3, 2}, {5}), wait, run("add", {5, 6}, {4})})
    program.instructions.push_back(next);
  const auto group = comm::make_self_communicator();
  device::Buffer variable(device, 12);
  const float initial[] = {1, 1, 1}, input[] = {1, 2, 3};
  variable.write(initial);
  Executor executor(program, device, testing::remote_table(), {group.get()}, {variable.data()});
  float output[3];
  const void* inputs[] = {input};
  void* outputs[] = {output};
  executor.run(inputs, outputs);
  EXPECT_EQ(output[0], 2 + 10 + 2);
  EXPECT_EQ(output[2], 4 + 30 + 4);
}

// The second of two ranks. The first one is simulated: a reduce to it gives this rank nothing, and
// an all_reduce doubles. The memory is on the device or on the host.
class Made final : public comm::Communicator {
 public:
  Made(device::Device& device, bool near)
      : Communicator({"made", 1, 2, 1, 2}), device_(device), near_(near) {}
  bool reaches(const device::Device& device) const noexcept override {
    return near_ ? &device == &device_ : Communicator::reaches(device);
  }
  bool lends_to(const device::Device& device) const noexcept override {
    return near_ ? &device == &device_ : Communicator::lends_to(device);
  }
  std::optional<comm::Work> try_submit(const comm::Collective& collective) override {
    if (collective.kind != comm::Kind::AllReduce) return comm::Work{};
    const auto* from = static_cast<const float*>(real(collective.source));
    auto* to = static_cast<float*>(const_cast<void*>(real(collective.destination)));
    for (std::uint64_t i = 0; i < collective.count; ++i) to[i] = 2 * from[i];
    return comm::Work{};
  }
  comm::Progress try_wait(comm::Work, const comm::WaitLimits&) override {
    return comm::Progress::Done;
  }
  std::optional<std::unique_ptr<Communicator>> try_split(int, int) override { return nullptr; }
  comm::SharedBlock allocate(std::size_t bytes) override {
    return {(near_ ? device_ : device::cpu()).allocate(bytes), bytes};
  }
  void release(comm::SharedBlock block) noexcept override {
    (near_ ? device_ : device::cpu()).release(block.data);
  }
  void give_up(ErrorKind, std::string_view, std::span<const int>) noexcept override {}
  void close() noexcept override {}

 private:
  const void* real(const void* pointer) const {
    return near_ ? testing::RemoteDevice::to_real(pointer) : pointer;
  }
  device::Device& device_;
  bool near_;
};

TEST_P(OnDevice, PassesDevicePointersToACommunicatorThatSupportsThem) {
  for (const bool near : {false, true})
    for (const bool reduce : {false, true}) {
      Made group(device, near);
      device::Buffer variable(device, 12);
      const float initial[] = {1, 1, 1}, input[] = {1, 2, 3};
      variable.write(initial);
      Program program = training_step();
      if (reduce)
        for (const int i : {1, 2}) program.instructions[static_cast<std::size_t>(i)].op = "reduce";
      Executor executor(program, device, testing::remote_table(), {&group}, {variable.data()});
      const std::size_t before = device.live_allocations();
      float output[3];
      const void* inputs[] = {input};
      void* outputs[] = {output};
      executor.run(inputs, outputs);
      EXPECT_EQ(output[1], (reduce ? 0 : 2 * 3) + 20);
      EXPECT_EQ(device.live_allocations(), before);
    }
}

}  // namespace
}  // namespace ngd
