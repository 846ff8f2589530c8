// SPDX-License-Identifier: Apache-2.0
// Tests recordings of the times of instructions, on devices of several kinds.
#include "runtime/recording.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "base/error.hpp"
#include "on_device.hpp"
#include "runtime/executor.hpp"
#include "steps.hpp"

namespace ngd {
namespace {

using runtime::Executor;
using runtime::MemoryKind;
using runtime::Program;
using testing::OnDevice;
using testing::run;
using testing::scan_of_two;
using testing::training_step;

INSTANTIATE_TEST_SUITE_P(Kinds, OnDevice, ::testing::ValuesIn(testing::kDeviceKinds),
                         testing::name_of_kind);

// A recording that ends with the block.
struct Recorded {
  explicit Recorded(std::size_t max_events) { runtime::recording().begin(max_events); }
  ~Recorded() { runtime::recording().end(); }
};

std::uint64_t sum_of(const std::vector<runtime::Timing>& timings) {
  std::uint64_t sum = 0;
  for (const runtime::Timing& timing : timings) sum += timing.ns;
  return sum;
}

TEST_P(OnDevice, RecordsTheTimeOfEachInstruction) {
  const auto group = comm::make_self_communicator();
  device::Buffer variable(device, 12);
  const float initial[] = {1, 1, 1}, input[] = {1, 2, 3};
  variable.write(initial);
  Executor executor(training_step(), device, testing::remote_table(), {group.get()},
                    {variable.data()});
  float output[3];
  const void* inputs[] = {input};
  void* outputs[] = {output};
  executor.run(inputs, outputs);
  EXPECT_EQ(executor.record().whole.calls, 0u);
  for (const std::size_t runs : {3, 2}) {  // a new recording starts at 0
    {
      const Recorded recorded(100);
      for (std::size_t i = 0; i < runs; ++i) executor.run(inputs, outputs);
    }
    executor.run(inputs, outputs);
    const runtime::Record record = executor.record();
    EXPECT_EQ(record.whole.calls, runs);
    EXPECT_EQ(record.whole.ns, sum_of(record.instructions));
    for (const runtime::Timing& timing : record.instructions) {
      EXPECT_EQ(timing.calls, runs);
      EXPECT_LE(timing.least_ns * runs, timing.ns);
    }
    if (GetParam().asynchronous) {  // the time of the kernel, and not of its enqueueing
      EXPECT_GE(record.instructions[0].least_ns, 1000000u);
    }
    EXPECT_GE(record.instructions[2].pending_ns, record.instructions[2].ns);
    EXPECT_EQ(record.instructions[0].pending_ns, 0u);

    const auto events = runtime::recording().events();
    ASSERT_EQ(events.size(), runs * 7);
    for (std::size_t i = 0; i < events.size(); ++i) {
      const bool whole = i % 7 == 6;
      EXPECT_EQ(events[i].instruction, whole ? runtime::Event::kWhole : i % 7);
      EXPECT_EQ(events[i].begin_ns,
                i % 7 == 0 || whole ? events[i - i % 7].begin_ns : events[i - 1].end_ns);
    }
    const auto labels = runtime::recording().labels();
    ASSERT_EQ(labels.size(), 1u);
    EXPECT_EQ(labels.begin()->first, events[0].program);
    EXPECT_EQ(labels.begin()->second.at(2).start, 1);
    EXPECT_EQ(labels.begin()->second.at(2).site, "model.py:9");
    EXPECT_EQ(runtime::recording().dropped(), 0u);
  }
}

TEST_P(OnDevice, RecordsUpToAFailedInstruction) {
  Program program = scan_of_two(false, MemoryKind::Output, MemoryKind::Output, MemoryKind::Output);
  program.instructions[0].bodies[0].instructions[1] = run("fails", {2, 3}, {5});
  Executor executor(program, device, testing::remote_table(), {}, {});
  const float start[] = {1, 2, 3}, slices[6] = {};
  float last[3], made[6], history[6];
  const void* inputs[] = {start, slices};
  void* outputs[] = {last, made, history};
  {
    const Recorded recorded(2);
    EXPECT_THROW(executor.run(inputs, outputs), Error);
  }
  const runtime::Record record = executor.record();
  EXPECT_EQ(record.whole.calls, 1u);
  EXPECT_EQ(record.instructions.at(0).calls, 1u);
  ASSERT_EQ(record.bodies.size(), 1u);
  const auto& inside = record.bodies[0].instructions;
  ASSERT_EQ(inside.size(), 3u);
  EXPECT_EQ(inside[0].calls, 1u);
  EXPECT_EQ(inside[1].calls, 1u);
  EXPECT_EQ(inside[2].calls, 0u);
  EXPECT_EQ(runtime::recording().events().size(), 2u);
  // The run of the body, the loop, and the whole run.
  EXPECT_EQ(runtime::recording().dropped(), 3u);
}

TEST_P(OnDevice, RecordsTheIterationsOfALoop) {
  Executor executor(scan_of_two(true, MemoryKind::Output, MemoryKind::Output, MemoryKind::Nowhere),
                    device, testing::remote_table(), {}, {});
  const float start[] = {1, 2, 3}, slices[6] = {};
  float last[3], made[6];
  const void* inputs[] = {start, slices};
  void* outputs[] = {last, made, nullptr};
  {
    const Recorded recorded(0);
    for (int i = 0; i < 3; ++i) executor.run(inputs, outputs);
  }
  const runtime::Record record = executor.record();
  EXPECT_EQ(record.instructions.at(0).calls, 3u);
  EXPECT_EQ(record.bodies.at(0).whole.calls, 6u);
  EXPECT_LE(record.bodies[0].whole.ns, record.instructions[0].ns);
  EXPECT_TRUE(runtime::recording().events().empty());
}

TEST(Recording, CannotBeStartedTwice) {
  {
    const Recorded recorded(0);
    try {
      runtime::recording().begin(0);
      FAIL() << "expected an error";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::Busy);
    }
  }
  const Recorded again(0);
}

TEST_P(OnDevice, GivesNoRecordOfAPendingRun) {
  Executor executor(scan_of_two(false, MemoryKind::Output, MemoryKind::Output, MemoryKind::Nowhere),
                    device, testing::remote_table(), {}, {});
  const float start[] = {1, 2, 3}, slices[6] = {};
  float last[3], made[6];
  const void* inputs[] = {start, slices};
  void* outputs[] = {last, made, nullptr};
  std::atomic<bool> over{false};
  std::thread runs([&] {
    const Recorded recorded(0);
    while (!over) executor.run(inputs, outputs);  // a run works while its record is read
  });
  bool refused = false;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!refused && std::chrono::steady_clock::now() < end) {
    try {
      executor.record();
    } catch (const Error& error) {
      refused = error.kind() == ErrorKind::Busy;
    }
  }
  over = true;
  runs.join();
  EXPECT_TRUE(refused);
}

}  // namespace
}  // namespace ngd
