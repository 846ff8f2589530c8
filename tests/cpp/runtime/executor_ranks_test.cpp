// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads, each with its own device. The operands of their collectives must be
// complete, and the results must be complete for the kernels after them.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "comm/ranks.hpp"
#include "device_kinds.hpp"
#include "runtime/executor.hpp"
#include "steps.hpp"

namespace ngd {
namespace {

using runtime::Action;
using runtime::Executor;
using runtime::Instruction;
using runtime::MemoryKind;
using runtime::Program;
using testing::run;

constexpr std::int64_t kCount = 5000;  // more than fits beside a flag
constexpr std::size_t kPlace = (kCount * sizeof(float) + 63) / 64 * 64;  // the bytes of one of them
constexpr int kRanks = 3, kCalls = 3;
const TensorType kLong{DType::F32, {kCount}};

class RanksOnDevices : public ::testing::TestWithParam<testing::DeviceKind> {};

INSTANTIATE_TEST_SUITE_P(Kinds, RanksOnDevices, ::testing::ValuesIn(testing::kDeviceKinds),
                         testing::name_of_kind);

Instruction sum(Action action, int value, int start) {
  Instruction sum{action, "all_reduce", {value}, {value}, {}, start, 0, "model.py:9", {}};
  if (action == Action::Wait) sum.inputs.clear();
  sum.attrs.set("reduce_op", std::string("sum"));
  return sum;
}

// variable <- output = sum(input + variable) + sum(2 * input): two pending collectives whose
// operands are in shared or in private memory.
Program two_sums(MemoryKind memory) {
  Program program;
  program.values = {{kLong, MemoryKind::Input, 0},
                    {kLong, MemoryKind::Variable, 0},
                    {kLong, memory, 0},
                    {kLong, memory, kPlace},
                    {kLong, MemoryKind::Output, 0},
                    {kLong, MemoryKind::Private, 0}};
  program.inputs = program.outputs = program.variables = 1;
  program.private_bytes = program.shared_bytes = 2 * kPlace;
  if (memory == MemoryKind::Private) program.values[5].position = program.private_bytes;
  program.private_bytes *= 2;
  program.instructions = {
      run("add", {0, 1}, {2}),   sum(Action::Start, 2, -1), run("add", {0, 0}, {3}),
      sum(Action::Start, 3, -1), run("copy", {0}, {5}),     sum(Action::Wait, 2, 1),
      sum(Action::Wait, 3, 3),   run("add", {2, 3}, {4}),   run("copy", {4}, {1})};
  program.groups = {{"two sums", 78}};
  return program;
}

std::vector<float> numbers(int rank, int call) {
  std::vector<float> numbers(kCount);
  for (std::size_t i = 0; i < numbers.size(); ++i)
    numbers[i] = static_cast<float>((i * 7 + static_cast<std::size_t>(rank * 100 + call)) % 512);
  return numbers;
}

// The result of two_sums on every rank. All values are small integers, so that the order of
// summation does not matter.
std::vector<float> expected(int calls) {
  std::vector<float> variable(kCount);
  for (int call = 0; call < calls; ++call) {
    std::vector<float> sum(kCount);
    for (int rank = 0; rank < kRanks; ++rank) {
      const std::vector<float> input = numbers(rank, call);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += 3 * input[i] + variable[i];
    }
    variable = sum;
  }
  return variable;
}

void expect_success(const std::vector<comm::Outcome>& outcomes) {
  for (const comm::Outcome& outcome : outcomes) EXPECT_FALSE(outcome.kind) << outcome.message;
}

TEST_P(RanksOnDevices, SumCompleteOperands) {
  const std::vector<float> sums[] = {expected(1), expected(2), expected(kCalls)};
  for (const MemoryKind memory : {MemoryKind::Shared, MemoryKind::Private})
    expect_success(comm::run_ranks(kRanks, [&](comm::Communicator& group) {
      testing::RemoteDevice device(GetParam().memory, GetParam().asynchronous,
                                   std::chrono::milliseconds(1 + 2 * group.rank()));
      device::Buffer variable(device, kLong.bytes());
      variable.write(std::vector<float>(kCount).data());
      Executor executor(two_sums(memory), device, testing::remote_table(), {&group},
                        {variable.data()});
      for (int call = 0; call < kCalls; ++call) {
        const std::vector<float> input = numbers(group.rank(), call);
        std::vector<float> output(kCount), kept(kCount);
        const void* inputs[] = {input.data()};
        void* outputs[] = {output.data()};
        executor.run(inputs, outputs);
        EXPECT_EQ(output, sums[call]);
        variable.read(kept.data());
        EXPECT_EQ(kept, sums[call]);
      }
    }));
}

// Rank 0 sends 2 x while it waits for the answer, which is the message plus x of rank 1. The output
// of rank 0 is the answer plus x.
Program ask_and_answer(int rank) {
  const TensorType token{DType::F32, {}};
  Program program;
  program.values = {
      {kLong, MemoryKind::Input, 0},        {kLong, MemoryKind::Private, 0},
      {kLong, MemoryKind::Private, kPlace}, {token, MemoryKind::Private, 2 * kPlace},
      {kLong, MemoryKind::Output, 0},       {token, MemoryKind::Private, 2 * kPlace + 64}};
  program.inputs = program.outputs = 1;
  program.private_bytes = 2 * kPlace + 128;
  const auto message = [&](Action action, const char* op, std::vector<int> inputs,
                           std::vector<int> outputs, int start) {
    Instruction each{action,       op, std::move(inputs), std::move(outputs), {}, start, 0,
                     "model.py:9", {}};
    each.attrs.set("root", std::int64_t{1 - rank});
    each.attrs.set("tag", std::int64_t{0});
    each.attrs.set("count", kCount);
    return each;
  };
  const Instruction receive = message(Action::Start, "recv", {5}, {1}, -1);
  if (rank == 0)
    program.instructions = {receive,
                            run("add", {0, 0}, {2}),
                            message(Action::Start, "send", {2}, {3}, -1),
                            message(Action::Wait, "recv", {}, {1}, 0),
                            run("add", {0, 1}, {4}),
                            message(Action::Wait, "send", {}, {3}, 2)};
  else
    program.instructions = {receive,
                            message(Action::Wait, "recv", {}, {1}, 0),
                            run("add", {0, 1}, {2}),
                            message(Action::Start, "send", {2}, {3}, -1),
                            run("copy", {1}, {4}),
                            message(Action::Wait, "send", {}, {3}, 3)};
  program.groups = {{"messages", 0}};
  return program;
}

TEST_P(RanksOnDevices, SendOperandsThatAPeerNeedsBeforeItAnswers) {
  expect_success(comm::run_ranks(2, [&](comm::Communicator& group) {
    testing::RemoteDevice device = GetParam().make();
    Executor executor(ask_and_answer(group.rank()), device, testing::remote_table(), {&group}, {});
    const std::vector<float> ones(kCount, 1);
    std::vector<float> output(kCount);
    const void* inputs[] = {ones.data()};
    void* outputs[] = {output.data()};
    executor.run(inputs, outputs);
    EXPECT_EQ(output, std::vector<float>(kCount, group.rank() == 0 ? 4.0f : 2.0f));
  }));
}

// output = sum over the ranks of (carry + slice).
Program round_with_a_sum(MemoryKind memory) {
  Program round;
  round.values = {{kLong, MemoryKind::Input, 0},
                  {kLong, MemoryKind::Input, 1},
                  {kLong, memory, 0},
                  {kLong, MemoryKind::Output, 0}};
  round.inputs = 2;
  round.outputs = 1;
  (memory == MemoryKind::Shared ? round.shared_bytes : round.private_bytes) = kPlace;
  round.instructions = {run("add", {0, 1}, {2}), sum(Action::Start, 2, -1), sum(Action::Wait, 2, 1),
                        run("copy", {2}, {3})};
  return round;
}

const TensorType kStack{DType::F32, {2, kCount}};

// output = the carry after two such iterations.
Program branch_of_rounds(MemoryKind memory) {
  const bool shared = memory == MemoryKind::Shared;
  const TensorType shared_bytes{DType::U8,
                                {static_cast<std::int64_t>(shared ? kPlace : 8 * kPlace)}};
  Program branch;
  branch.values = {{kLong, MemoryKind::Input, 0},
                   {kStack, MemoryKind::Input, 1},
                   {kLong, MemoryKind::Output, 0},
                   {kStack, MemoryKind::Nowhere},
                   {{DType::U8, {8 * kPlace}}, MemoryKind::Private, 0},
                   {shared_bytes, shared ? MemoryKind::Shared : MemoryKind::Nowhere, 0}};
  branch.inputs = 2;
  branch.outputs = 1;
  branch.private_bytes = 8 * kPlace;
  branch.shared_bytes = shared ? kPlace : 0;
  Instruction scan{Action::Scan, "scan", {0, 1}, {2, 3, 4, 5}, {}, -1, 0, "model.py:3", {}};
  for (const auto& [name, value] : {std::pair{"carries", 1}, {"slices", 1}, {"length", 2}})
    scan.attrs.set(name, std::int64_t{value});
  scan.attrs.set("reverse", std::int64_t{0});
  scan.bodies = {round_with_a_sum(memory)};
  branch.instructions = {scan};
  return branch;
}

// Two iterations of carry = sum(carry + slice) in a branch, while a sum of 2 * slice is pending.
// The output is the carry plus this sum. The inputs are the carry and the slices.
Program rounds_of_sums(MemoryKind memory) {
  const bool shared = memory == MemoryKind::Shared;
  const Program branch = branch_of_rounds(memory);
  Program program;
  program.values = {{kLong, MemoryKind::Input, 0},
                    {kStack, MemoryKind::Input, 1},
                    {kLong, memory, 0},
                    {{DType::Bool, {}}, MemoryKind::Private, kPlace},
                    {kLong, memory, kPlace},
                    {{DType::U8, {16 * kPlace}}, MemoryKind::Private, 2 * kPlace},
                    {{DType::U8, {8 * kPlace}},
                     shared ? MemoryKind::Shared : MemoryKind::Nowhere,
                     shared ? 2 * kPlace : 0},
                    {kLong, MemoryKind::Output, 0}};
  program.inputs = 2;
  program.outputs = 1;
  program.private_bytes = 18 * kPlace;
  program.shared_bytes = 10 * kPlace;
  program.instructions = {
      run("add", {0, 0}, {2}),
      sum(Action::Start, 2, -1),
      run("positive", {0}, {3}),
      {Action::Cond, "cond", {3, 0, 1}, {4, 5, 6}, {}, -1, 0, "model.py:4", {branch, branch}},
      sum(Action::Wait, 2, 1),
      run("add", {2, 4}, {7})};
  program.groups = {{"sums in rounds", 79}};
  return program;
}

TEST_P(RanksOnDevices, SumInTheIterationsOfALoop) {
  for (const MemoryKind memory : {MemoryKind::Shared, MemoryKind::Private})
    expect_success(comm::run_ranks(kRanks, [&](comm::Communicator& group) {
      testing::RemoteDevice device(GetParam().memory, GetParam().asynchronous,
                                   std::chrono::milliseconds(1 + group.rank()));
      Executor executor(rounds_of_sums(memory), device, testing::remote_table(), {&group}, {});
      for (int call = 1; call <= kCalls; ++call) {
        const auto whole = static_cast<float>(call);
        const std::vector<float> input(kCount, whole), slices(2 * kCount, 10 * whole);
        std::vector<float> output(kCount);
        const void* inputs[] = {input.data(), slices.data()};
        void* outputs[] = {output.data()};
        executor.run(inputs, outputs);  // 3 * 2, and 3 * (3 * 11 + 10)
        EXPECT_EQ(output, std::vector<float>(kCount, (6 + 129) * whole));
      }
    }));
}

// The peers do not sum the output of a failed kernel. They are notified of the failure.
TEST_P(RanksOnDevices, AreNotifiedOfAKernelThatFailsBeforeACollective) {
  for (const int place : {1, 3}) {  // before the first collective, and before the second
    const auto outcomes = comm::run_ranks(2, [&](comm::Communicator& group) {
      testing::RemoteDevice device = GetParam().make();
      device::Buffer variable(device, kLong.bytes());
      variable.write(std::vector<float>(kCount).data());
      Program program = two_sums(MemoryKind::Shared);
      program.instructions[static_cast<std::size_t>(place) - 1].op =
          group.rank() == 0 ? "fails" : "add";
      Executor executor(program, device, testing::remote_table(), {&group}, {variable.data()});
      const std::vector<float> input = numbers(group.rank(), 0);
      std::vector<float> output(kCount);
      const void* inputs[] = {input.data()};
      void* outputs[] = {output.data()};
      executor.run(inputs, outputs);
    });
    EXPECT_EQ(outcomes[0].kind, ErrorKind::InvalidArgument);
    EXPECT_EQ(outcomes[0].message, "index 7 is out of range (in fails, made at model.py:7)");
    EXPECT_EQ(outcomes[1].kind, ErrorKind::RemoteRank);
    EXPECT_NE(outcomes[1].message.find("index 7 is out of range"), std::string::npos)
        << outcomes[1].message;
  }
}

}  // namespace
}  // namespace ngd
