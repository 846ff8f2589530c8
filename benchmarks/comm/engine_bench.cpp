// SPDX-License-Identifier: Apache-2.0
// Measure collectives of float32 among the ranks of one host, without Python:
//     engine_bench [ranks] [kind] [flat|ring|auto|nodes] [bytes...]
//     engine_bench [ranks] [kind] checks [bytes...]
//     engine_bench [ranks] copy all [bytes...]
// `bytes` is the size of a rank's larger buffer. Every rank rewrites its source before each call,
// so that no call finds its input in a peer's cache. If there is a core for each rank, it is bound
// to one, as under mpirun. The program prints one line of JSON per size and kind of memory. It has
// the median and the lowest tenth of the times of the slowest rank, over the calls.
// "nodes" is the flat algorithm, on ranks that are assigned to two NUMA nodes. "checks" takes turns
// with a group that neither compares fingerprints nor watches for deaths, and adds the median of
// the differences. With "copy", the ranks together copy `bytes` from and to private memory, as the
// engine copies large blocks. This shows the limit of the memory.
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/shm/bootstrap.hpp"
#include "comm/shm/copy.hpp"

namespace {

using namespace ngd;
using namespace ngd::comm;

constexpr double kTimeout = 120;
constexpr int kWarmUp = 3;

struct Settings {
  int ranks = 2;
  Kind kind = Kind::AllReduce;
  std::string algorithm = "auto";
  bool checks = false;
  bool copies = false;
  std::vector<std::size_t> sizes{8,         1024,    4096,    8192,     16 << 10, 64 << 10,
                                 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20};

  bool on_nodes() const { return algorithm == "nodes"; }
};

struct Times {
  double median, tenth;
};

bool in_place(Kind kind) {
  return kind == Kind::AllReduce || kind == Kind::Broadcast || kind == Kind::Reduce;
}

// One block per rank if the kind has blocks. The larger side has `count` elements.
Collective make(const Settings& settings, float* source, float* destination, std::size_t count) {
  Collective collective;
  collective.kind = settings.kind;
  collective.op = reduces(settings.kind) ? ReduceOp::Sum : ReduceOp::None;
  collective.dtype = DType::F32;
  collective.count =
      has_blocks(settings.kind) ? count / static_cast<std::size_t>(settings.ranks) : count;
  collective.source = source;
  collective.destination = destination;
  collective.algorithm = algorithm_named(settings.on_nodes() ? "flat" : settings.algorithm);
  collective.site = "engine_bench";
  return collective;
}

// Time `work`. Before every call, all ranks write `written` elements to their source and
// synchronise.
template <typename Work>
Times measure(Communicator& group, float* source, std::size_t written, std::size_t bytes,
              const Work& work) {
  const int calls = bytes <= 128 << 10 ? 400 : bytes <= 4 << 20 ? 60 : 15;
  const int inner = bytes <= 64 ? 100 : 1;  // below the resolution of the clock
  std::vector<double> times;
  for (int i = -kWarmUp; i < calls; ++i) {
    for (std::size_t k = 0; k < written; ++k) source[k] = static_cast<float>(1 + group.rank());
    Collective barrier;
    group.wait(group.submit(barrier), kTimeout);
    const auto start = std::chrono::steady_clock::now();
    for (int k = 0; k < inner; ++k) work();
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    if (i >= 0) times.push_back(spent.count() / inner);
  }
  Collective slowest;
  slowest.kind = Kind::AllReduce;
  slowest.op = ReduceOp::Max;
  slowest.dtype = DType::F64;
  slowest.count = times.size();
  slowest.source = slowest.destination = times.data();
  group.wait(group.submit(slowest), kTimeout);
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times[times.size() / 10]};
}

Times measure(Communicator& group, const Settings& settings, float* source, float* destination,
              std::size_t count) {
  const Collective collective = make(settings, source, destination, count);
  const std::size_t written = source_elements(collective, group.rank(), group.size());
  return measure(group, source, written, count * sizeof(float),
                 [&] { group.wait(group.submit(collective), kTimeout); });
}

void report(const Settings& settings, const char* lane, std::size_t bytes, Times times) {
  const std::string kind(settings.copies ? "copy" : name_of(settings.kind));
  std::printf(
      "{\"kind\": \"%s\", \"ranks\": %d, \"algorithm\": \"%s\", \"lane\": \"%s\", \"bytes\": %zu, "
      "\"us\": %.3f, \"us_tenth\": %.3f, \"algbw_gbs\": %.3f}\n",
      kind.c_str(), settings.ranks, settings.algorithm.c_str(), lane, bytes, times.median * 1e6,
      times.tenth * 1e6, static_cast<double>(bytes) / times.median * 1e-9);
  std::fflush(stdout);
}

// Bind to core number `rank` of the cores of this process, if there are enough.
void bind(int rank, int ranks) {
  cpu_set_t all, one;
  if (::sched_getaffinity(0, sizeof all, &all) != 0 || CPU_COUNT(&all) < ranks) return;
  CPU_ZERO(&one);
  for (int core = 0, seen = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &all) && seen++ == rank) CPU_SET(core, &one);
  ::sched_setaffinity(0, sizeof one, &one);
}

void run(const Settings& settings, int rank, const std::string& key) {
  bind(rank, settings.ranks);
  const auto group = make_shm_communicator(key, rank, settings.ranks, kTimeout);
  const bool alone = in_place(settings.kind);
  for (const std::size_t bytes : settings.sizes) {
    const std::size_t count = bytes / sizeof(float);
    const SharedBlock one = group->allocate(bytes), other = group->allocate(alone ? 0 : bytes);
    auto* source = static_cast<float*>(one.data);
    const Times shared =
        measure(*group, settings, source, alone ? source : static_cast<float*>(other.data), count);
    if (rank == 0) report(settings, "shared", bytes, shared);
    group->release(one);
    group->release(other);
    std::vector<float> own(count), result(alone ? 0 : count);
    const Times staged =
        measure(*group, settings, own.data(), alone ? own.data() : result.data(), count);
    if (rank == 0) report(settings, "staged", bytes, staged);
  }
}

// The cost of fingerprints and of the death watch.
void run_checks(const Settings& settings, int rank, const std::string& key) {
  constexpr int kTurns = 11;
  bind(rank, settings.ranks);
  std::vector<std::unique_ptr<Communicator>> groups;
  for (const bool checked : {true, false})
    groups.push_back(shm::meet(key + (checked ? "-checked" : "-bare"), rank, settings.ranks,
                               kTimeout, {}, checked));
  for (const std::size_t bytes : settings.sizes) {
    std::vector<float> source(bytes / sizeof(float)), destination(source.size());
    std::vector<double> checked, bare, differences;
    for (int turn = 0; turn < kTurns; ++turn) {
      for (std::vector<double>* times : {&checked, &bare}) {
        Communicator& group = *groups[times == &checked ? 0 : 1];
        times->push_back(
            measure(group, settings, source.data(), destination.data(), source.size()).median);
      }
      differences.push_back(checked.back() - bare.back());
    }
    for (auto* each : {&checked, &bare, &differences}) std::sort(each->begin(), each->end());
    if (rank == 0)
      std::printf(
          "{\"kind\": \"%s\", \"ranks\": %d, \"bytes\": %zu, \"us\": %.3f, \"bare_us\": %.3f, "
          "\"difference_ns\": %.1f}\n",
          std::string(name_of(settings.kind)).c_str(), settings.ranks, bytes,
          checked[kTurns / 2] * 1e6, bare[kTurns / 2] * 1e6, differences[kTurns / 2] * 1e9);
  }
}

void run_copies(const Settings& settings, int rank, const std::string& key) {
  bind(rank, settings.ranks);
  const auto group = make_shm_communicator(key, rank, settings.ranks, kTimeout);
  for (const std::size_t bytes : settings.sizes) {
    const std::size_t mine = bytes / static_cast<std::size_t>(settings.ranks);
    std::vector<float> source(mine / sizeof(float)), destination(source.size());
    const auto copy = [&] {
      shm::copy_piece(reinterpret_cast<std::byte*>(destination.data()),
                      reinterpret_cast<const std::byte*>(source.data()), mine, mine);
    };
    const Times times = measure(*group, source.data(), source.size(), bytes, copy);
    if (rank == 0) report(settings, "private", bytes, times);
  }
}

void run_rank(const Settings& settings, int rank, const std::string& key) {
  if (settings.on_nodes())
    ::setenv("NGD_NUMA_NODE", std::to_string(2 * rank / settings.ranks).c_str(), 1);
  const auto how = settings.copies ? run_copies : settings.checks ? run_checks : run;
  how(settings, rank, key);
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  if (argc > 1) settings.ranks = std::atoi(argv[1]);
  if (argc > 2) settings.copies = argv[2] == std::string("copy");
  if (argc > 2 && !settings.copies) settings.kind = kind_named(argv[2]);
  if (argc > 3) settings.checks = argv[3] == std::string("checks");
  if (argc > 3 && !settings.checks) settings.algorithm = argv[3];
  if (argc > 4) settings.sizes.clear();
  for (int i = 4; i < argc; ++i) settings.sizes.push_back(std::strtoull(argv[i], nullptr, 10));
  const std::string key = "engine_bench-" + std::to_string(::getpid());
  for (int rank = 1; rank < settings.ranks; ++rank)
    if (::fork() == 0) {
      try {
        run_rank(settings, rank, key);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
        ::_exit(1);
      }
      ::_exit(0);
    }
  int result = 0;
  try {
    run_rank(settings, 0, key);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank 0: %s\n", error.what());
    result = 1;
  }
  int status = 0;
  while (::wait(&status) > 0)
    if (status != 0) result = 1;
  return result;
}
