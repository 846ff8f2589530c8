// SPDX-License-Identifier: Apache-2.0
// Whether a run shall end because a signal handler of the program has raised (Ctrl-C).
//
// A run asks between two instructions. It reads a coarse clock there, and calls back at most every
// 100 ms: to see a signal, Python needs its lock, which another thread may hold.
#pragma once

#include <cstdint>
#include <ctime>

#include "base/error.hpp"

namespace ngd::runtime {

// Returns whether a handler has raised. Called on the thread of the run.
using Interrupt = bool (*)();

class Interrupts {
 public:
  explicit Interrupts(Interrupt interrupt) noexcept : interrupt_(interrupt) {}

  // A run begins.
  void begin() noexcept { next_ms_ = now_ms() + kPeriodMs; }

  // Throws Interrupted.
  void check() {
    if (now_ms() >= next_ms_) [[unlikely]]
      ask();
  }

 private:
  static constexpr std::int64_t kPeriodMs = 100;

  // Of a resolution of some milliseconds, in a few nanoseconds.
  static std::int64_t now_ms() noexcept {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return static_cast<std::int64_t>(now.tv_sec) * 1000 + now.tv_nsec / 1'000'000;
  }

  void ask() {
    if (interrupt_ != nullptr && interrupt_())
      fail(ErrorKind::Interrupted, "interrupted between two instructions of a step");
    begin();
  }

  Interrupt interrupt_;
  std::int64_t next_ms_ = 0;
};

}  // namespace ngd::runtime
