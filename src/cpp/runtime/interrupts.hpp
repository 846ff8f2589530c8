// SPDX-License-Identifier: Apache-2.0
// Ends a run if a Python signal handler has raised an exception (Ctrl-C).
//
// A run checks between two instructions. A check reads a coarse clock, and calls Python at most
// every 100 ms: Python needs its lock to handle a signal, and another thread may hold the lock.
#pragma once

#include <cstdint>
#include <ctime>

#include "base/error.hpp"

namespace ngd::runtime {

// A function that returns true if a Python signal handler has raised an exception. It is called on
// the thread of the run.
using Interrupt = bool (*)();

class Interrupts {
 public:
  explicit Interrupts(Interrupt interrupt) noexcept : interrupt_(interrupt) {}

  // Call this when a run begins: the first check of signals comes one period later.
  void begin() noexcept { next_ms_ = now_ms() + kPeriodMs; }

  // Throw Interrupted if a Python signal handler has raised an exception. Python is asked at most
  // every 100 ms. All other calls only read the clock.
  void check() {
    if (now_ms() >= next_ms_) [[unlikely]]
      ask();
  }

 private:
  static constexpr std::int64_t kPeriodMs = 100;

  // Return the time in milliseconds, from a clock with a resolution of some milliseconds. A call
  // takes a few nanoseconds.
  static std::int64_t now_ms() noexcept {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return static_cast<std::int64_t>(now.tv_sec) * 1000 + now.tv_nsec / 1'000'000;
  }

  // Throw Interrupted if a Python signal handler has raised an exception. Otherwise set the time of
  // the next check.
  void ask() {
    if (interrupt_ != nullptr && interrupt_())
      fail(ErrorKind::Interrupted, "interrupted between two instructions of a step");
    begin();
  }

  Interrupt interrupt_;
  std::int64_t next_ms_ = 0;
};

}  // namespace ngd::runtime
