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

std::atomic<int> thread_share{0};  // the argument of set_thread_share(); 0 = not called
std::atomic<bool> forked{false};

// Return the number of CPUs in the affinity mask, or 1 if it cannot be read. A cpu_set_t has 1024
// bits. If the operating system supports more CPUs, sched_getaffinity fails with EINVAL, and the
// function tries again with a set of twice the size.
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

// Return the CPU quota of the cgroup in cores; 0 if there is no quota or memory runs out.
double quota_cores() noexcept {
  try {
    return cgroup_cpu_quota();
  } catch (const std::exception&) {  // out of memory while file names are built
    return 0;
  }
}

// The cores for threads that run no kernels, such as the thread that moves MPI's data. If OpenMP
// binds threads to cores, it binds the main thread to one core. A thread that the main thread
// starts would inherit this single core. So such a thread moves to `cores`: the cores of OpenMP's
// places to which no thread of the kernels is bound. If there are no such cores, `cores` has the
// cores of all places. If OpenMP binds no threads, `cores` is not used.
struct OffKernelAffinity {
  std::mutex mutex;
  cpu_set_t cores{};
  std::atomic<int> version{0};  // the number of updates of `cores`; 0: `cores` is not used
} off_kernel_affinity;

// Return the cores of all OpenMP places. The function allocates no memory. It runs when the ranks
// are already connected: an allocation that failed would raise an error on this rank, but not on
// the other ranks.
cpu_set_t cores_of_places() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  for (int place = 0; place < omp_get_num_places(); ++place) {
    std::array<int, CPU_SETSIZE> ids;
    const int count = omp_get_place_num_procs(place);
    if (count > CPU_SETSIZE) continue;  // more cores than a cpu_set_t can represent
    omp_get_place_proc_ids(place, ids.data());
    for (int i = 0; i < count; ++i) CPU_SET(ids[static_cast<std::size_t>(i)], &cores);
  }
  return cores;
}

// Return the cores to which the kernels' threads are bound. Each thread of the team reads its own
// affinity mask.
cpu_set_t cores_of_kernels() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  std::mutex mutex;
  for_pieces(thread_count(), [&](std::int64_t) {
    cpu_set_t own_cores;
    CPU_ZERO(&own_cores);
    sched_getaffinity(0, sizeof own_cores, &own_cores);
    const std::lock_guard lock(mutex);
    CPU_OR(&cores, &cores, &own_cores);
  });
  return cores;
}

// Set off_kernel_affinity.cores to the cores of OpenMP's places to which no kernel thread is bound,
// or to all cores of the places if each is bound. Increase the version. If OpenMP binds no threads,
// do nothing.
void find_off_kernel_cores() {
  if (omp_get_proc_bind() == omp_proc_bind_false) return;
  const cpu_set_t all = cores_of_places();
  const cpu_set_t kernels = cores_of_kernels();
  cpu_set_t off_kernel;
  CPU_XOR(&off_kernel, &all, &kernels);
  CPU_AND(&off_kernel, &off_kernel, &all);
  const std::lock_guard lock(off_kernel_affinity.mutex);
  off_kernel_affinity.cores = CPU_COUNT(&off_kernel) > 0 ? off_kernel : all;
  ++off_kernel_affinity.version;
}

// Return the number of threads, up to `wanted`, that this process can have besides the calling one.
// The function starts them and ends them again, because OpenMP ends the process if it cannot start
// a thread.
int count_startable(int wanted) {
  struct Gate {
    std::mutex mutex;
    std::condition_variable opens;
    bool open = false;
  } gate;
  const auto wait = [](void* argument) -> void* {
    auto& gate_of_thread = *static_cast<Gate*>(argument);
    std::unique_lock lock(gate_of_thread.mutex);
    gate_of_thread.opens.wait(lock, [&] { return gate_of_thread.open; });
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

// Return the number of threads, up to `wanted`, that OpenMP and the system provide. A kernel is
// built for this number of threads, so the function counts only threads that the system can start.
// If there are fewer than `wanted`, and the user has set NGD_THREADS, throws Init.
int count_threads(int wanted, bool requested_by_user) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const int limit = omp_get_max_active_levels() < 1 ? 1 : omp_get_thread_limit();
  const int num_threads = limit < wanted ? limit : 1 + count_startable(wanted - 1);
  if (num_threads < wanted && requested_by_user)
    fail(ErrorKind::Init, "NGD_THREADS: expected at most ", num_threads, " here (",
         limit < wanted ? "OMP_THREAD_LIMIT, OMP_MAX_ACTIVE_LEVELS"
                        : "RLIMIT_NPROC, RLIMIT_AS, the cgroup's pids.max",
         "); got ", wanted);
  return num_threads;
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
  static const int requested_by_user = config::threads();
  static const int all = available_cores();
  const int share = thread_share.load(std::memory_order_relaxed);
  const int wanted = requested_by_user > 0 ? requested_by_user : share > 0 ? share : all;
  if (wanted == 1) return 1;
  // A cached result, two 32-bit numbers in one atomic integer: the last value of `wanted` in the
  // upper half, and the number of threads that was found for it in the lower half.
  static std::atomic<std::uint64_t> answer{0};
  const std::uint64_t last = answer.load(std::memory_order_relaxed);
  if (last >> 32 == static_cast<std::uint64_t>(wanted)) return static_cast<int>(last & 0xffffffff);
  const int num_threads = count_threads(wanted, requested_by_user > 0);
  answer.store(static_cast<std::uint64_t>(wanted) << 32 | static_cast<std::uint64_t>(num_threads));
  return num_threads;
}

void set_thread_share(int threads) {
  thread_share.store(std::max(1, threads));
  find_off_kernel_cores();
}

void OffKernelCores::follow() noexcept {
  if (off_kernel_affinity.version == version_) return;
  const std::lock_guard lock(off_kernel_affinity.mutex);
  version_ = off_kernel_affinity.version;
  sched_setaffinity(0, sizeof off_kernel_affinity.cores, &off_kernel_affinity.cores);
}

}  // namespace ngd::device
