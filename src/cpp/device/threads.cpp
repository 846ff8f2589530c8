// SPDX-License-Identifier: Apache-2.0
#include "device/threads.hpp"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <fstream>
#include <string>

#include "base/config.hpp"

namespace ngd::device {

namespace {

std::atomic<int> local_ranks{1};
std::atomic<bool> forked{false};

int affinity_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

// cgroup v2: "max 100000" or "150000 100000"; v1: two files. No file means no quota.
double cgroup_cores() {
  std::string quota;
  double period = 0;
  if (std::ifstream v2("/sys/fs/cgroup/cpu.max"); v2 >> quota >> period)
    return quota == "max" || period <= 0 ? 0 : std::stod(quota) / period;
  double v1_quota = 0;
  std::ifstream quota_file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
  std::ifstream period_file("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  if (quota_file >> v1_quota && period_file >> period && v1_quota > 0 && period > 0)
    return v1_quota / period;
  return 0;
}

// Ranks that a launcher bound to different cores share nothing: only a mask wider than one rank's
// share is divided.
int fair_share() {
  const int ranks = local_ranks.load(std::memory_order_relaxed);
  return std::max(1, available_cores() / std::max(1, ranks));
}

struct ForkGuard {
  ForkGuard() {
    pthread_atfork(nullptr, nullptr, [] { forked.store(true, std::memory_order_relaxed); });
  }
} fork_guard;

}  // namespace

int available_cores() noexcept {
  static const double quota = cgroup_cores();
  const int affinity = affinity_cores();
  return quota > 0 ? std::max(1, std::min(affinity, static_cast<int>(std::ceil(quota)))) : affinity;
}

int thread_count() noexcept {
  if (forked.load(std::memory_order_relaxed)) return 1;
  static const int wanted = config::threads();
  static std::atomic<int> share{0}, share_of_ranks{0};
  if (wanted > 0) return wanted;
  const int ranks = local_ranks.load(std::memory_order_relaxed);
  if (share_of_ranks.load(std::memory_order_relaxed) != ranks) {
    share.store(fair_share(), std::memory_order_relaxed);
    share_of_ranks.store(ranks, std::memory_order_relaxed);
  }
  return share.load(std::memory_order_relaxed);
}

void set_local_ranks(int ranks) noexcept { local_ranks.store(std::max(1, ranks)); }

}  // namespace ngd::device
