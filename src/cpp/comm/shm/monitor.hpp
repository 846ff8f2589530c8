// SPDX-License-Identifier: Apache-2.0
// Which thread of this rank may touch the state of a family.
//
// Two bits tell it. `inside`: a thread is in an engine call, which means submit, wait, done or
// split; another thread that makes one gets Busy. `locked`: a thread touches the state. An engine
// call takes both bits at once and gives both back at its end. All other calls (close, abort,
// stats, allocate, release) are short; they wait for `locked` and take it alone.
//
// An engine call that waits for its peers keeps `inside`, and hands `locked` over as soon as
// another thread wants it: `wanted` counts those threads. It also gives `locked` back while it asks
// its caller whether to go on (comm::Communicator::set_interrupt): the caller may run any code, and
// that code may close or drop groups. So nobody who holds `locked` waits for anything but memory.
#pragma once

#include <atomic>
#include <cstdint>

#include "comm/shm/wait.hpp"

namespace ngd::comm::shm {

class Monitor {
 public:
  // Return false, and change nothing, if another thread is inside.
  [[nodiscard]] bool enter() noexcept {
    std::uint32_t word = 0;
    if (!word_.compare_exchange_strong(word, kInside | kLocked, std::memory_order_acquire,
                                       std::memory_order_relaxed)) [[unlikely]]
      return enter_slowly();
    if (wanted()) [[unlikely]]
      give_way();
    return true;
  }
  void leave() noexcept { word_.store(0, std::memory_order_release); }

  // Of the thread that is inside: whether another one wants `locked`, and a turn for all of these.
  bool wanted() const noexcept { return wanted_.load(std::memory_order_relaxed) != 0; }
  // The same in the order of wait.hpp: before falling asleep.
  bool wanted_before_sleep() const noexcept { return wanted_.load() != 0; }
  void give_way() noexcept;
  void unlock_inside() noexcept { word_.store(kInside, std::memory_order_release); }
  void lock_inside() noexcept;

  // Of a thread that is not inside, or has given `locked` back there. `sleeper` is my own record:
  // the thread that is inside may sleep there.
  void lock(RankRecord& sleeper) noexcept;
  void unlock() noexcept;

 private:
  static constexpr std::uint32_t kInside = 1, kLocked = 2;

  bool enter_slowly() noexcept;

  alignas(kLine) std::atomic<std::uint32_t> word_{0};
  std::atomic<std::uint32_t> wanted_{0};
};

// An engine call. False if another thread is in one.
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

// While an engine call asks its caller.
class Outside {
 public:
  explicit Outside(Monitor& monitor) noexcept : monitor_(monitor) { monitor.unlock_inside(); }
  ~Outside() { monitor_.lock_inside(); }
  Outside(const Outside&) = delete;
  Outside& operator=(const Outside&) = delete;

 private:
  Monitor& monitor_;
};

// Any other call.
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
