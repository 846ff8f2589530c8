// SPDX-License-Identifier: Apache-2.0
// The wait ladder: spin, then yield, then sleep on my own doorbell.
//
// Nobody may miss a flag that is raised while he falls asleep. The one who raises it stores the
// flag (sequentially consistent), then looks whether a peer sleeps; the one who goes to sleep says
// so (sequentially consistent), then looks at the flags once more. In the single order of these
// four at least one of the two sees the other.
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

// Where a waiting rank stands on the ladder. A rank that has a core to itself spins; ranks that
// outnumber the cores, or that the scheduler has pushed off theirs of late, yield a few times.
class Ladder {
 public:
  explicit Ladder(bool crowded) noexcept : crowded_(crowded) {}
  void restart() noexcept { held_ = 0; }
  bool hold() noexcept;  // spins or yields once; false where only sleep is left

 private:
  bool pushed_off() noexcept;

  bool crowded_;
  bool yields_ = crowded_;
  int held_ = 0;
  long switches_ = 0;  // involuntary ones, when last asked
  std::uint64_t yields_until_ns_ = 0;
};

void sleep_on(RankRecord& mine, std::uint32_t bell, std::uint64_t limit_ns) noexcept;

// Sleeps on my doorbell until a peer rings or `limit_ns` have passed, unless moved() says, after
// `sleeping` is set, that something has happened. `until` is as in RankRecord::sleeping.
template <class Moved>
void sleep_unless(RankRecord& mine, std::uint32_t until, std::uint64_t limit_ns, Moved&& moved) {
  const std::uint32_t bell = mine.doorbell.load();
  mine.sleeping.store(until);
  struct Awake {
    RankRecord& mine;
    ~Awake() { mine.sleeping.store(kAwake); }
  } awake{mine};
  if (!moved()) sleep_on(mine, bell, limit_ns);
}

}  // namespace ngd::comm::shm
