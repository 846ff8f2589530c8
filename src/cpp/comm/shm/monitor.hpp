// SPDX-License-Identifier: Apache-2.0
// The lock of a family (the groups of one rank, and the state that these groups share). Only one
// thread of the rank at a time uses this state.
//
// There are two kinds of calls. An engine call is submit, wait, done or split; it may wait for
// peers. The other calls (close, abort, stats, allocate, release) are short. The lock has two bits:
//   inside   a thread is in an engine call. Another thread that begins one gets Busy
//   locked   a thread uses the state
// An engine call sets both bits when it begins, and clears both when it ends. A short call waits
// until `locked` is clear, sets it, and clears it at its end.
//
// A short call must not wait until a peer or the interrupt callback is done. So an engine call
// clears `locked` in two cases:
//   - At its beginning, and while it waits for its peers, an engine call checks `wanted`, the
//     number of threads that wait for `locked`. If the number is not 0, the engine call clears
//     `locked`, and sets it again when the number is 0.
//   - While an engine call runs the interrupt callback, `locked` is clear
//     (comm::Communicator::set_interrupt). The callback may run any code, and may close groups.
#pragma once

#include <atomic>
#include <cstdint>

#include "comm/shm/wait.hpp"

namespace ngd::comm::shm {

class Monitor {
 public:
  // Begin an engine call (submit, wait, done or split). Return false, and change nothing, if
  // another thread is in an engine call.
  [[nodiscard]] bool enter() noexcept {
    std::uint32_t word = 0;
    if (!word_.compare_exchange_strong(word, kInside | kLocked, std::memory_order_acquire,
                                       std::memory_order_relaxed)) [[unlikely]]
      return enter_slowly();
    if (wanted()) [[unlikely]]
      give_way();
    return true;
  }
  // End the engine call (such as wait) of this thread: clear `inside` and `locked`. Both must be
  // set.
  void leave() noexcept { word_.store(0, std::memory_order_release); }

  // Both are called by the thread that is in an engine call (submit, wait, done or split).
  // wanted(): return true if another thread waits until the bit `locked` is clear. give_way():
  // clear the bit, wait until no other thread waits for it, and set it again.
  bool wanted() const noexcept { return wanted_.load(std::memory_order_relaxed) != 0; }
  // The same as wanted(), with a sequentially consistent load, for a thread that is about to sleep
  // (wait.hpp).
  bool wanted_before_sleep() const noexcept { return wanted_.load() != 0; }
  void give_way() noexcept;
  // Clear `locked` during an engine call (such as wait), so that short calls (such as close) can
  // run.
  void unlock_inside() noexcept { word_.store(kInside, std::memory_order_release); }
  // Wait until no short call (such as close) has `locked` set. Then set `locked` for the engine
  // call (such as wait) of this thread.
  void lock_inside() noexcept;

  // Wait until the bit `locked` is clear, and set it. Called at the beginning of a short call (such
  // as close), which may also run in the interrupt callback of an engine call (such as wait). A
  // thread that sleeps in an engine call holds the bit: wake it, so that it clears the bit.
  // `sleeper`: the record of this rank, which shows if such a thread sleeps.
  void lock(RankRecord& sleeper) noexcept;
  void unlock() noexcept;

 private:
  static constexpr std::uint32_t kInside = 1, kLocked = 2;

  // The rest of enter() if `inside` or `locked` is set. Return false if another thread is in an
  // engine call (such as wait). Otherwise wait until no short call (such as close) has `locked`
  // set, then set both bits and return true.
  bool enter_slowly() noexcept;

  alignas(kLine) std::atomic<std::uint32_t> word_{0};
  std::atomic<std::uint32_t> wanted_{0};
};

// A guard that begins an engine call (submit, wait, done or split) and ends it when destroyed. The
// guard converts to false if another thread is in an engine call: then the guard has no effect.
class [[nodiscard]] Inside {
 public:
  explicit Inside(Monitor& monitor) noexcept : monitor_(monitor), has_entered_(monitor.enter()) {}
  ~Inside() {
    if (has_entered_) monitor_.leave();
  }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  explicit operator bool() const noexcept { return has_entered_; }

 private:
  Monitor& monitor_;
  const bool has_entered_;
};

// A guard for the interrupt callback, which runs inside an engine call (submit, wait, done or
// split). The constructor clears the bit `locked`, so that the callback and other threads can make
// short calls, such as close. The destructor sets the bit again.
class Outside {
 public:
  explicit Outside(Monitor& monitor) noexcept : monitor_(monitor) { monitor.unlock_inside(); }
  ~Outside() { monitor_.lock_inside(); }
  Outside(const Outside&) = delete;
  Outside& operator=(const Outside&) = delete;

 private:
  Monitor& monitor_;
};

// A guard for a short call, such as close or stats. The constructor waits until the bit `locked` is
// clear, and sets it. The destructor clears it.
class Locked {
 public:
  Locked(Monitor& monitor, RankRecord& sleeper) noexcept : monitor_(monitor) {
    monitor.lock(sleeper);
  }
  ~Locked() { monitor_.unlock(); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  Monitor& monitor_;
};

}  // namespace ngd::comm::shm
