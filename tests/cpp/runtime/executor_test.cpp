// SPDX-License-Identifier: Apache-2.0
// The executor on the CPU and on a device whose memory the host cannot address: one case list.
#include "runtime/executor.hpp"

#include <gtest/gtest.h>

#include <thread>

#include "base/error.hpp"
#include "remote_device.hpp"

namespace ngd {
namespace {

using runtime::Action;
using runtime::Executor;
using runtime::Instruction;
using runtime::Lane;
using runtime::Program;

const TensorType kVector{DType::F32, {3}};

Instruction run(const char* op, std::vector<int> inputs, std::vector<int> outputs) {
  return {Action::Run, op, std::move(inputs), std::move(outputs), {}, -1, 0, "model.py:7", {}};
}

// output = all_reduce(input + variable) + constant; then variable <- output.
Program training_step() {
  Program program;
  program.values = {{kVector, Lane::Input, 0},    {kVector, Lane::Variable, 0},
                    {kVector, Lane::Constant, 0}, {kVector, Lane::Shared, 0},
                    {kVector, Lane::Output, 0},   {kVector, Lane::Private, 0}};
  program.inputs = program.outputs = program.variables = 1;
  program.private_bytes = program.shared_bytes = 64;
  const float ten[] = {10, 20, 30};
  program.constants.emplace_back(reinterpret_cast<const char*>(ten),
                                 reinterpret_cast<const char*>(ten) + sizeof ten);
  Instruction start{Action::Start, "all_reduce", {3}, {3}, {}, -1, 0, "model.py:9", {}};
  start.attrs.set("reduce_op", std::string("sum"));
  Instruction wait{Action::Wait, "all_reduce", {}, {3}, {}, 1, 0, "model.py:9", {}};
  program.instructions = {
      run("add", {0, 1}, {3}), start, wait, run("add", {3, 2}, {5}), run("copy", {5}, {4}),
      run("copy", {5}, {1})};
  program.groups = {{"all_reduce f32[3] at model.py:9", 77}};
  return program;
}

TEST(Executor, RunsOnADeviceWhoseMemoryTheHostCannotAddress) {
  testing::RemoteDevice device;
  const auto group = comm::make_self_communicator();
  {
    device::Buffer variable(device, 12);
    const float initial[] = {1, 1, 1};
    device.copy_from_host(variable.data(), initial, 12);
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
    device.copy_to_host(kept, variable.data(), 12);
    EXPECT_EQ(kept[0], 23);
    EXPECT_EQ(kept[2], 3 + 34 + 30);
  }
  EXPECT_EQ(device.live_allocations(), 0u);
}

// carry, made = body(carry, slice): made = carry + slice + ten, and carry = made.
Program round_of_a_scan() {
  Program body;
  body.values = {{kVector, Lane::Input, 0},   {kVector, Lane::Input, 1},
                 {kVector, Lane::Private, 0}, {kVector, Lane::Constant, 0},
                 {kVector, Lane::Output, 0},  {kVector, Lane::Output, 1}};
  body.inputs = body.outputs = 2;
  body.private_bytes = 64;
  const float ten[] = {10, 20, 30};
  body.constants.emplace_back(reinterpret_cast<const char*>(ten),
                              reinterpret_cast<const char*>(ten) + sizeof ten);
  body.instructions = {run("add", {0, 1}, {2}), run("add", {2, 3}, {5}), run("copy", {5}, {4})};
  return body;
}

// last, made, histories of that scan over two slices; what nobody reads lies nowhere.
Program scan_of_two(bool reverse, Lane last, Lane made, Lane history) {
  const TensorType stack{DType::F32, {2, 3}}, spare{DType::U8, {64 + 3 * 64}};
  Program program;
  const auto result = [](const TensorType& type, Lane lane, std::size_t number) {
    return runtime::Value{type, lane, lane == Lane::Nowhere ? 0 : number};
  };
  program.values = {{kVector, Lane::Input, 0}, {stack, Lane::Input, 1},
                    result(kVector, last, 0),  result(stack, made, 1),
                    result(stack, history, 2), {spare, Lane::Private, 0}};
  program.inputs = 2;
  program.outputs = 3;
  program.private_bytes = 64 + 3 * 64;
  Instruction scan{Action::Scan, "scan", {0, 1}, {2, 3, 4, 5}, {}, -1, 0, "model.py:3", {}};
  for (const auto& [name, value] : {std::pair{"carries", 1}, {"slices", 1}, {"length", 2}})
    scan.attrs.set(name, std::int64_t{value});
  scan.attrs.set("reverse", std::int64_t{reverse});
  scan.bodies.push_back(round_of_a_scan());
  program.instructions = {scan};
  return program;
}

TEST(Executor, RepeatsAProgramWhateverIsRead) {
  testing::RemoteDevice device;
  const float start[] = {1, 2, 3}, slices[] = {100, 200, 300, 1000, 2000, 3000};
  const void* inputs[] = {start, slices};
  for (int unread = 0; unread < 8; ++unread)
    for (const bool reverse : {false, true}) {
      float last[3] = {}, made[6] = {}, history[6] = {};
      void* outputs[] = {last, made, history};
      const auto lane = [&](int bit) { return (unread & bit) != 0 ? Lane::Nowhere : Lane::Output; };
      Executor executor(scan_of_two(reverse, lane(1), lane(2), lane(4)), device,
                        testing::remote_table(), {}, {});
      executor.run(inputs, outputs);
      const int first = reverse ? 3 : 0, second = 3 - first;  // where the slices begin
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
  EXPECT_EQ(device.live_allocations(), 0u);
}

// Of two programs of one operand the first adds it to itself, the second hands it on.
TEST(Executor, RunsOneOfTwoPrograms) {
  testing::RemoteDevice device;
  Program doubles, hands_on;
  for (Program* body : {&doubles, &hands_on}) {
    body->values = {{kVector, Lane::Input, 0}, {kVector, Lane::Output, 0}};
    body->inputs = body->outputs = 1;
  }
  doubles.instructions = {run("add", {0, 0}, {1})};
  hands_on.instructions = {run("copy", {0}, {1})};
  Program program;
  program.values = {{{DType::Bool, {}}, Lane::Input, 0},
                    {kVector, Lane::Input, 1},
                    {kVector, Lane::Output, 0},
                    {{DType::U8, {64}}, Lane::Private, 0}};
  program.inputs = 2;
  program.outputs = 1;
  program.private_bytes = 64;
  program.instructions = {
      {Action::Cond, "cond", {0, 1}, {2, 3}, {}, -1, 0, "model.py:4", {doubles, hands_on}}};
  Executor executor(program, device, testing::remote_table(), {}, {});
  const float input[] = {1, 2, 3};
  for (const bool chosen : {false, true, false}) {
    float output[3] = {};
    const void* inputs[] = {&chosen, input};
    void* outputs[] = {output};
    executor.run(inputs, outputs);
    EXPECT_EQ(output[2], chosen ? 3 : 6);
  }
}

TEST(Executor, TellsWhetherVariablesWereTouchedWhenAStepFails) {
  testing::RemoteDevice device;
  device::Buffer variable(device, 12);
  const float input[] = {1, 2, 3};
  float output[3];
  const void* inputs[] = {input};
  void* outputs[] = {output};
  for (const bool before : {true, false}) {
    const auto group = comm::make_self_communicator();  // a step that fails closes it
    Program program = training_step();
    program.instructions.insert(
        before ? program.instructions.begin() + 3 : program.instructions.end(),
        run("fails", {3}, {5}));
    Executor executor(program, device, testing::remote_table(), {group.get()}, {variable.data()});
    try {
      executor.run(inputs, outputs);
      FAIL() << "expected an error";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::InvalidArgument);
      EXPECT_STREQ(error.what(), "index 7 is out of range (in fails, made at model.py:7)");
    }
    EXPECT_EQ(executor.variables_touched(), !before);
  }
}

// A group of one in which another thread is: submit and wait are refused so often.
class Crowded final : public comm::Communicator {
 public:
  std::vector<int> refusals;  // before each call that goes through, in turn
  int aborts = 0;

  std::string_view name() const noexcept override { return "crowded"; }
  int rank() const noexcept override { return 0; }
  int size() const noexcept override { return 1; }
  int local_rank() const noexcept override { return 0; }
  int local_size() const noexcept override { return 1; }
  comm::Work submit(const comm::Collective& collective) override {
    refuse();
    return inner_->submit(collective);
  }
  void wait(comm::Work work, double timeout_seconds) override {
    refuse();
    inner_->wait(work, timeout_seconds);
  }
  bool done(comm::Work work) override { return inner_->done(work); }
  bool wait_for(comm::Work work, double seconds) override {
    return inner_->wait_for(work, seconds);
  }
  std::unique_ptr<Communicator> split(int, int) override { return nullptr; }
  comm::SharedBlock allocate(std::size_t bytes) override { return inner_->allocate(bytes); }
  void release(comm::SharedBlock block) noexcept override { inner_->release(block); }
  void abort(std::string_view) noexcept override { ++aborts; }
  void close() noexcept override {}

 private:
  void refuse() {
    if (refusals.empty()) return;
    if (refusals.front()-- > 0) fail(ErrorKind::Busy, "another thread");
    refusals.erase(refusals.begin());
  }
  std::unique_ptr<Communicator> inner_ = comm::make_self_communicator();
};

// Refused at its first collective, a run has not begun; later on it waits for its turn.
TEST(Executor, IsRefusedBeforeItHasBegunOrNotAtAll) {
  Crowded group;
  testing::RemoteDevice device;
  device::Buffer variable(device, 12);
  const float initial[] = {1, 1, 1};
  float value[3] = {};
  device.copy_from_host(variable.data(), initial, 12);
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
  device.copy_to_host(value, variable.data(), 12);
  EXPECT_EQ(value[0], 1);
  group.refusals = {0, 3};
  executor.run(inputs, outputs);
  EXPECT_EQ(output[2], 34);
  device.copy_to_host(value, variable.data(), 12);
  EXPECT_EQ(value[2], 34);
  EXPECT_EQ(group.aborts, 0);
}

// output[1:4] = input[2:5] + variable[1:4], where only these parts are ever named.
TEST(Executor, AddressesPartsOfWhatIsNumbered) {
  const TensorType part{DType::F32, {3}};
  Program program;
  program.values = {{part, Lane::Input, 0, 8},
                    {part, Lane::Variable, 0, 4},
                    {part, Lane::Output, 0, 4},
                    {{DType::F32, {1}}, Lane::Input, 0, 0},
                    {{DType::F32, {1}}, Lane::Output, 0, 0}};
  program.inputs = program.outputs = program.variables = 1;
  program.instructions = {run("add", {0, 1}, {2}), run("copy", {3}, {4})};
  testing::RemoteDevice device;
  device::Buffer variable(device, 16);
  const float initial[] = {10, 20, 30, 40}, input[] = {1, 2, 3, 4, 5};
  device.copy_from_host(variable.data(), initial, 16);
  float output[4] = {};
  const void* inputs[] = {input};
  void* outputs[] = {output};
  Executor executor(program, device, testing::remote_table(), {}, {variable.data()});
  executor.run(inputs, outputs);
  EXPECT_EQ(std::vector<float>(output, output + 4), (std::vector<float>{1, 23, 34, 45}));
}

TEST(Executor, NamesTheOpThatNoKernelTakes) {
  testing::RemoteDevice device;
  Program program = training_step();
  program.instructions = {run("erfinv", {0}, {4})};
  device::Buffer variable(device, 12);
  const auto group = comm::make_self_communicator();
  try {
    Executor executor(program, device, testing::remote_table(), {group.get()}, {variable.data()});
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Unsupported);
    EXPECT_NE(std::string(error.what()).find("no kernel for erfinv (made at model.py:7)"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace ngd
