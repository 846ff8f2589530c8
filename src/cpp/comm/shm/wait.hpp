// SPDX-License-Identifier: Apache-2.0
// The wait ladder: a waiting rank spins, then yields, then sleeps on its own doorbell. The doorbell
// is a futex in the rank's record. A peer that raises a flag rings the doorbell if the rank sleeps,
// which wakes it.
//
// No rank may miss a flag that is raised while it falls asleep. The rank that raises it stores the
// flag (sequentially consistent), then checks if a peer sleeps. The rank that goes to sleep stores
// that it sleeps (sequentially consistent), then checks the flags once more. In the single order of
// these four accesses, at least one of the two ranks sees the store of the other.
#pragma once

#include <cstdint>

#include "comm/shm/segment.hpp"

namespace ngd::comm::shm {

// Pause a spin loop for some cycles, without a system call.
inline void pause_cpu() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

// Values of RankRecord::sleeping. kAwake: the rank is awake. kUntilAny: it sleeps until any rank
// raises a flag. until_rank(r): it sleeps until rank r raises a flag.
inline constexpr std::uint32_t kAwake = 0, kUntilAny = ~0u;
inline constexpr std::uint32_t until_rank(int rank) { return static_cast<std::uint32_t>(rank) + 1; }

// Wake a rank, whatever flag it waits for. Do nothing if it does not sleep.
void wake(RankRecord& sleeper) noexcept;

// Called when `rank` has raised a flag: wake `peer` if it sleeps until this rank, or any rank,
// raises a flag.
inline void ring_bell(RankRecord& peer, int rank) noexcept {
  const std::uint32_t sleeping = peer.sleeping.load();
  if (sleeping != kAwake && (sleeping == kUntilAny || sleeping == until_rank(rank))) [[unlikely]]
    wake(peer);
}

// The state of the wait ladder of a rank: it decides between a spin, a yield and a sleep.
//
// If a rank has a core of its own, it spins before it sleeps, for longer than a wake-up takes. If
// the spin were shorter than a wake-up, two ranks that wait for each other alternately could sleep
// at every wait: while one rank wakes up, the other one stops spinning and falls asleep. So woken()
// measures how long a wake-up takes. A wake-up may take a whole tick of the scheduler, if a program
// of low priority has got the core.
//
// If there are more ranks than cores, or if other programs often preempt the rank (the rank is
// disturbed), it does not spin: it yields a few times and then sleeps. A rank that spins uses up
// its share of the core, and must then wait for a whole time slice of another program. The number
// of yields doubles after a short sleep, in which the doorbell rang soon after the rank had gone to
// sleep. The number shrinks after any other sleep.
class Ladder {
 public:
  explicit Ladder(bool crowded) noexcept : is_crowded_(crowded) {}
  // Begin a new wait with spins or yields. The limits on both, adapted in earlier waits, are kept.
  void restart() noexcept { count_ = 0; }
  // Spin or yield once. Return false if it is time to sleep instead.
  bool spin_or_yield() noexcept;
  // Update the number of yields and the duration of a spin after a sleep. This rank fell asleep at
  // `asleep_ns`, a peer rang the doorbell at `rung_ns`, and this rank has woken.
  void woken(std::uint64_t asleep_ns, std::uint64_t rung_ns) noexcept;

 private:
  bool spin() noexcept;
  // Decide if other programs often preempt this rank (is_disturbed_). Do nothing until 50 ms have
  // passed since the last decision, or 1 s if its result was true.
  void update_disturbed() noexcept;

  bool is_crowded_;
  bool is_disturbed_ = false;  // other programs often preempt this rank
  int count_ = 0;              // the number of spins or yields since restart()
  int yields_ = kLeastYields;
  std::uint64_t patience_ns_ = kLeastPatienceNs;
  std::uint64_t spin_until_ns_ = 0, spin_at_most_until_ns_ = 0;
  std::uint64_t last_look_ns_ = 0;  // the time at which the clock was read last
  std::uint64_t updated_ns_ = 0;    // the time of the last update of is_disturbed_
  // The time since updated_ns_ in which the rank was in a spin, but had no core (spin()).
  std::uint64_t pushed_off_ns_ = 0;

  // The limits of patience_ns_, the time for which a rank spins. Between the limits, patience_ns_
  // is at least twice the duration of the last wake-up. The lower limit is enough for a common
  // wake-up. The upper limit is enough for a wake-up that takes a tick of a scheduler with 250
  // ticks per second (4 ms).
  static constexpr std::uint64_t kLeastPatienceNs = 200'000, kMostPatienceNs = 10'000'000;
  static constexpr int kLeastYields = 10, kMostYields = 5'000;
};

// Sleep on the futex mine.doorbell until a peer wakes this rank or limit_ns has passed. Return at
// once if the value of the futex is not `bell` any more. May return early, for example after a
// signal.
void sleep_on(RankRecord& mine, std::uint32_t bell, std::uint64_t limit_ns) noexcept;

// Sleep until a peer rings the doorbell or `limit_ns` nanoseconds have passed. has_changed() checks
// the flags once more after `sleeping` is set; if it returns true, there is no sleep. `until`: the
// peers that must ring the doorbell, a value of RankRecord::sleeping.
template <class HasChanged>
void sleep_unless(RankRecord& mine, Ladder& ladder, std::uint32_t until, std::uint64_t limit_ns,
                  HasChanged&& has_changed) {
  const std::uint32_t bell = mine.doorbell.load();
  mine.sleeping.store(until);
  struct Awake {
    RankRecord& mine;
    ~Awake() { mine.sleeping.store(kAwake); }
  } awake{mine};
  if (has_changed()) return;
  const std::uint64_t asleep_ns = now_ns();
  sleep_on(mine, bell, limit_ns);
  if (mine.doorbell.load() != bell)
    ladder.woken(asleep_ns, mine.rung_ns.load(std::memory_order_relaxed));
}

}  // namespace ngd::comm::shm
