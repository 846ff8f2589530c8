// SPDX-License-Identifier: Apache-2.0
// Recordings: the times of instructions.
//
// A process makes one recording at a time. A recording has the total times of each instruction. If
// begin() was called with max_events > 0, it also has one event per run and one per execution of an
// instruction. An executor, which runs a program, checks once per run whether a recording is on. An
// instruction begins when the previous one ends, so the times add up to the time of the run. If the
// device runs instructions asynchronously, a recorded run waits after each instruction to measure
// its time.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/program.hpp"

namespace ngd::runtime {

// Return the time of CLOCK_MONOTONIC in nanoseconds. All processes of a host share this clock.
std::int64_t now_ns() noexcept;

// The times of one instruction, or of whole runs, in a recording.
struct Timing {
  std::uint64_t calls = 0, ns = 0, least_ns = 0;
  // for Action::Wait: the time from the beginning of its Action::Start to the end of the Wait
  std::uint64_t pending_ns = 0;

  // Count one more call, which took `duration_ns`. pending_ns does not change.
  void add(std::int64_t duration_ns) noexcept {
    const auto duration = static_cast<std::uint64_t>(duration_ns);
    least_ns = calls == 0 || duration < least_ns ? duration : least_ns;
    ns += duration;
    ++calls;
  }
};

// The times of a program. `whole` has the times of its runs. `bodies` has the times of its nested
// programs, in the order of the instructions that run them.
struct Record {
  Timing whole;
  std::vector<Timing> instructions;
  std::vector<Record> bodies;
};

// One execution of an instruction, or one run of a program.
struct Event {
  static constexpr std::uint32_t kWhole = UINT32_MAX;
  std::uint64_t program;      // the number that next_program() gave to the program's executor
  std::uint32_t instruction;  // the number of the instruction, or kWhole for a whole run
  std::uint64_t thread;       // the thread number of the operating system
  std::int64_t begin_ns, end_ns;
};

// The description of an instruction. An Event has only numbers: the label of its instruction is
// labels().at(event.program)[event.instruction].
struct Label {
  Action action = Action::Run;
  std::string op, site;
  int start = -1;  // for Action::Wait: the index of the Action::Start that it waits for
};

// The recording of this process: the one in progress, or else the last one. It stores the events.
// Each executor, which runs a program, stores its own total times.
class Recording {
 public:
  // Begin a recording, and drop the previous one. Throws Busy if a recording is on. Events after
  // the first `max_events` are only counted. If `max_events` is 0, no events are kept.
  void begin(std::size_t max_events);
  // End the recording. Its events are kept until the next recording begins.
  void end() noexcept;

  // Return the number of the current recording, or 0 if none is on. Each recording has a new
  // number.
  std::uint64_t current() const noexcept { return on_.load(std::memory_order_relaxed); }
  // Return true if a recording is on that stores events (begin() with max_events > 0).
  bool wants_events() const noexcept { return wants_events_.load(std::memory_order_relaxed); }
  // Return a new number for an executor, the object that runs a program. Event::program has this
  // number.
  std::uint64_t next_program() noexcept { return ++programs_; }

  // Add events of the executor with this number. They are dropped if memory is short.
  void add(std::uint64_t number, const Program& program, const std::vector<Event>& events) noexcept;

  // events() returns a copy of the events. labels() returns a copy of the labels: a map from the
  // number of a program (Event::program) to the labels of its instructions. dropped() returns the
  // number of events that were not kept.
  std::vector<Event> events() const;
  std::unordered_map<std::uint64_t, std::vector<Label>> labels() const;
  std::uint64_t dropped() const noexcept;

 private:
  std::atomic<std::uint64_t> on_{0}, programs_{0};
  std::atomic<bool> wants_events_{false};
  mutable std::mutex mutex_;  // protects the members below
  std::uint64_t last_ = 0, dropped_ = 0;
  std::size_t max_events_ = 0;
  std::deque<Event> events_;
  std::unordered_map<std::uint64_t, std::vector<Label>> labels_;
};

// Return the only recording object of this process. It is never destroyed.
Recording& recording() noexcept;

}  // namespace ngd::runtime
