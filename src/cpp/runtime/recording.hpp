// SPDX-License-Identifier: Apache-2.0
// What instructions take, while somebody asks.
//
// A process makes one recording at a time: of the times of instructions, and, where that is wanted,
// of each single one as an event. Executors ask once a run whether a recording is on, so none costs
// nothing. An instruction begins where the one before it ended: so the times of all add up to the
// time of the run. On a device whose queues are asynchronous a recorded run waits after each
// instruction, or nobody could say what that took.
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

// Nanoseconds on CLOCK_MONOTONIC, which all processes of a host share.
std::int64_t now_ns() noexcept;

// What an instruction, or a whole run, has taken in a recording.
struct Timing {
  std::uint64_t calls = 0, ns = 0, least_ns = 0;
  std::uint64_t flight_ns = 0;  // of a Wait: from the begin of its Start to its own end

  void add(std::int64_t taken_ns) noexcept {
    const auto taken = static_cast<std::uint64_t>(taken_ns);
    least_ns = calls == 0 || taken < least_ns ? taken : least_ns;
    ns += taken;
    ++calls;
  }
};

// What a program has taken: its runs, each of its instructions, and the programs that these run, in
// the order of the instructions.
struct Record {
  Timing whole;
  std::vector<Timing> instructions;
  std::vector<Record> bodies;
};

// An instruction that ran, or a whole run.
struct Event {
  static constexpr std::uint32_t kWhole = UINT32_MAX;
  std::uint64_t program;      // an executor's number
  std::uint32_t instruction;  // kWhole: the run
  std::uint64_t thread;       // the system's number of it
  std::int64_t begin_ns, end_ns;
};

// What an event's numbers stand for.
struct Label {
  Action action = Action::Run;
  std::string op, site;
  int start = -1;  // of a Wait: its Start
};

// The process's recording.
class Recording {
 public:
  // Begins one, and forgets the last. Throws Busy while one is on. `most_events`: later ones are
  // counted and dropped; 0 = none is wanted.
  void begin(std::size_t most_events);
  void end() noexcept;  // none is on from here; its events stay until the next begins

  // 0: none is on. Else its number: another one has another number.
  std::uint64_t now() const noexcept { return on_.load(std::memory_order_relaxed); }
  bool wants_events() const noexcept { return wants_events_.load(std::memory_order_relaxed); }
  // A number for an executor, which no other one has.
  std::uint64_t next_program() noexcept { return ++programs_; }

  // From an executor of that number. Without memory they are dropped.
  void add(std::uint64_t number, const Program& program, const std::vector<Event>& events) noexcept;

  // Copies of what is there.
  std::vector<Event> events() const;
  std::unordered_map<std::uint64_t, std::vector<Label>> labels() const;
  std::uint64_t dropped() const noexcept;

 private:
  std::atomic<std::uint64_t> on_{0}, programs_{0};
  std::atomic<bool> wants_events_{false};
  mutable std::mutex mutex_;  // of all below
  std::uint64_t last_ = 0, dropped_ = 0;
  std::size_t most_events_ = 0;
  std::deque<Event> events_;
  std::unordered_map<std::uint64_t, std::vector<Label>> labels_;
};

Recording& recording() noexcept;

}  // namespace ngd::runtime
