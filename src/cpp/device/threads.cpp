// SPDX-License-Identifier: Apache-2.0
#include "device/threads.hpp"

#include <omp.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <vector>

#include "base/cgroup.hpp"
#include "base/config.hpp"
#include "base/error.hpp"
#include "device/team.hpp"

namespace ngd::device {

namespace {

std::atomic<int> thread_share{0};  // 0 = not set
std::atomic<bool> forked{false};

// A cpu_set_t has 1024 bits; where the kernel has more CPUs, it needs a larger set.
int affinity_cores() noexcept {
  constexpr int kMostCpus = 1 << 20;
  for (int cpus = CPU_SETSIZE; cpus <= kMostCpus; cpus *= 2) {
    cpu_set_t* set = CPU_ALLOC(static_cast<std::size_t>(cpus));
    if (set == nullptr) return 1;
    const std::size_t bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(cpus));
    const bool is_filled = sched_getaffinity(0, bytes, set) == 0;
    const int error = errno, count = is_filled ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (is_filled) return std::max(1, count);
    if (error != EINVAL) return 1;
  }
  return 1;
}

double quota_cores() noexcept {
  try {
    return cgroup_cpu_quota();
  } catch (const std::exception&) {  // no memory for the names of files
    return 0;
  }
}

// Where threads other than the kernels' run, once it is known that these are bound; OpenMP binds
// the main thread, too, so whatever that one starts would begin on its core.
struct Elsewhere {
  std::mutex mutex;
  cpu_set_t cores{};
  std::atomic<int> version{0};  // 0 = the kernels' threads are not bound
} elsewhere;

// Asks for no memory: a rank that has met the others must not fail here.
cpu_set_t cores_of_places() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  for (int place = 0; place < omp_get_num_places(); ++place) {
    std::array<int, CPU_SETSIZE> ids;
    const int count = omp_get_place_num_procs(place);
    if (count > CPU_SETSIZE) continue;  // a cpu_set_t cannot tell of them
    omp_get_place_proc_ids(place, ids.data());
    for (int i = 0; i < count; ++i) CPU_SET(ids[static_cast<std::size_t>(i)], &cores);
  }
  return cores;
}

// Asks each of the kernels' threads, as a kernel would call them.
cpu_set_t cores_of_kernels() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  std::mutex mutex;
  for_pieces(thread_count(), [&](std::int64_t) {
    cpu_set_t mine;
    CPU_ZERO(&mine);
    sched_getaffinity(0, sizeof mine, &mine);
    const std::lock_guard lock(mutex);
    CPU_OR(&cores, &cores, &mine);
  });
  return cores;
}

void find_elsewhere() {
  if (omp_get_proc_bind() == omp_proc_bind_false) return;
  const cpu_set_t all = cores_of_places();
  const cpu_set_t kernels = cores_of_kernels();
  cpu_set_t others;
  CPU_XOR(&others, &all, &kernels);
  CPU_AND(&others, &others, &all);
  const std::lock_guard lock(elsewhere.mutex);
  elsewhere.cores = CPU_COUNT(&others) > 0 ? others : all;
  ++elsewhere.version;
}

// How many threads this process can have beside the one that asks, up to `wanted`: they are started
// and ended. OpenMP would end the process where it cannot start one.
int startable(int wanted) {
  struct Gate {
    std::mutex mutex;
    std::condition_variable opens;
    bool open = false;
  } gate;
  const auto wait = [](void* argument) -> void* {
    auto& held = *static_cast<Gate*>(argument);
    std::unique_lock lock(held.mutex);
    held.opens.wait(lock, [&] { return held.open; });
    return nullptr;
  };
  std::vector<pthread_t> threads;
  for (pthread_t each{}; static_cast<int>(threads.size()) < wanted;) {
    if (pthread_create(&each, nullptr, wait, &gate) != 0) break;
    threads.push_back(each);
  }
  {
    const std::lock_guard lock(gate.mutex);
    gate.open = true;
  }
  gate.opens.notify_all();
  for (const pthread_t each : threads) pthread_join(each, nullptr);
  return static_cast<int>(threads.size());
}

// A kernel is built for a number of threads and must get them: as many of the `wanted` as OpenMP
// and the system give.
int count_threads(int wanted, bool by_the_user) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const int most = omp_get_max_active_levels() < 1 ? 1 : omp_get_thread_limit();
  const int got = most < wanted ? most : 1 + startable(wanted - 1);
  if (got < wanted && by_the_user)
    fail(ErrorKind::Init, "NGD_THREADS: expected at most ", got, " here (",
         most < wanted ? "OMP_THREAD_LIMIT, OMP_MAX_ACTIVE_LEVELS"
                       : "RLIMIT_NPROC, RLIMIT_AS, the cgroup's pids.max",
         "); got ", wanted);
  return got;
}

struct ForkGuard {
  ForkGuard() {
    pthread_atfork(nullptr, nullptr, [] { forked.store(true, std::memory_order_relaxed); });
  }
} fork_guard;

}  // namespace

int available_cores() noexcept {
  static const double quota = quota_cores();
  const int affinity = affinity_cores();
  return quota > 0 ? std::max(1, std::min(affinity, static_cast<int>(std::ceil(quota)))) : affinity;
}

int thread_count() {
  if (forked.load(std::memory_order_relaxed)) return 1;
  static const int by_the_user = config::threads();
  static const int all = available_cores();
  const int share = thread_share.load(std::memory_order_relaxed);
  const int wanted = by_the_user > 0 ? by_the_user : share > 0 ? share : all;
  if (wanted == 1) return 1;
  // What was wanted last, and what there is of it: two halves of a word.
  static std::atomic<std::uint64_t> answer{0};
  const std::uint64_t last = answer.load(std::memory_order_relaxed);
  if (last >> 32 == static_cast<std::uint64_t>(wanted)) return static_cast<int>(last & 0xffffffff);
  const int got = count_threads(wanted, by_the_user > 0);
  answer.store(static_cast<std::uint64_t>(wanted) << 32 | static_cast<std::uint64_t>(got));
  return got;
}

void set_thread_share(int threads) {
  thread_share.store(std::max(1, threads));
  find_elsewhere();
}

void OffKernelCores::follow() noexcept {
  if (elsewhere.version == followed_) return;
  const std::lock_guard lock(elsewhere.mutex);
  followed_ = elsewhere.version;
  sched_setaffinity(0, sizeof elsewhere.cores, &elsewhere.cores);
}

}  // namespace ngd::device
