// SPDX-License-Identifier: Apache-2.0
// The wait ladder: spin, then yield, then sleep on my own doorbell.
//
// No rank may miss a flag that is raised while it falls asleep. The rank that raises it stores the
// flag (sequentially consistent), then looks whether a peer sleeps. The rank that goes to sleep
// says so (sequentially consistent), then looks at the flags once more. In the single order of
// these four at least one of the two sees the other.
#pragma once

#include <cstdint>

#include "comm/shm/segment.hpp"

namespace ngd::comm::shm {

inline void pause_cpu() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

// What `sleeping` says: awake, or asleep until one rank (by number) or any rank raises a flag.
inline constexpr std::uint32_t kAwake = 0, kUntilAny = ~0u;
inline constexpr std::uint32_t until_rank(int rank) { return static_cast<std::uint32_t>(rank) + 1; }

void wake(RankRecord& sleeper) noexcept;

// After `rank` has raised a flag: wakes `peer` where it sleeps for that.
inline void ring_bell(RankRecord& peer, int rank) noexcept {
  const std::uint32_t sleeping = peer.sleeping.load();
  if (sleeping != kAwake && (sleeping == kUntilAny || sleeping == until_rank(rank))) [[unlikely]]
    wake(peer);
}

// Where a waiting rank stands on the ladder.
//
// A rank that has its core to itself spins, for longer than a wake-up takes. Else two ranks could
// stay asleep by turns: one wakes the other, has no more patience than the wake-up takes, and must
// be woken itself. Sleepers measure how long a wake-up takes: where a program of low priority has
// taken the core meanwhile, a whole tick of the scheduler.
//
// Ranks that outnumber the cores, and a rank that is pushed off its core for much of the time,
// yield a few times and sleep: who spins there uses up its share of the core, and then waits for a
// whole time slice of another program. How often they yield follows from the sleeps: more often
// where the bell rang soon after a rank had gone to sleep, else less often.
class Ladder {
 public:
  explicit Ladder(bool crowded) noexcept : crowded_(crowded) {}
  void restart() noexcept { held_ = 0; }
  bool hold() noexcept;  // spins or yields once; false where only sleep is left
  // I went to sleep at the first time, a peer rang at the second, and I am awake now.
  void woken(std::uint64_t asleep_ns, std::uint64_t rung_ns) noexcept;

 private:
  bool spin() noexcept;
  void find_out() noexcept;

  bool crowded_;
  bool disturbed_ = false;  // other programs push me off my core for much of the time
  int held_ = 0;
  int yields_ = kLeastYields;
  std::uint64_t patience_ns_ = kLeastPatienceNs;
  std::uint64_t spin_until_ns_ = 0, spin_at_most_until_ns_ = 0;
  std::uint64_t looked_ns_ = 0;      // at the clock, last
  std::uint64_t found_out_ns_ = 0;   // whether I am disturbed, last
  std::uint64_t pushed_off_ns_ = 0;  // since then, while I spun

  // The least is a common wake-up, the most two ticks of a scheduler with 250 of them a second.
  static constexpr std::uint64_t kLeastPatienceNs = 200'000, kMostPatienceNs = 10'000'000;
  static constexpr int kLeastYields = 10, kMostYields = 5'000;
};

void sleep_on(RankRecord& mine, std::uint32_t bell, std::uint64_t limit_ns) noexcept;

// Sleeps on my doorbell until a peer rings or `limit_ns` have passed, unless moved() says, after
// `sleeping` is set, that something has happened. `until` is as in RankRecord::sleeping.
template <class Moved>
void sleep_unless(RankRecord& mine, Ladder& ladder, std::uint32_t until, std::uint64_t limit_ns,
                  Moved&& moved) {
  const std::uint32_t bell = mine.doorbell.load();
  mine.sleeping.store(until);
  struct Awake {
    RankRecord& mine;
    ~Awake() { mine.sleeping.store(kAwake); }
  } awake{mine};
  if (moved()) return;
  const std::uint64_t asleep_ns = now_ns();
  sleep_on(mine, bell, limit_ns);
  if (mine.doorbell.load() != bell)
    ladder.woken(asleep_ns, mine.rung_ns.load(std::memory_order_relaxed));
}

}  // namespace ngd::comm::shm
