// SPDX-License-Identifier: Apache-2.0
// All-reduce of float32 among the ranks of one host, without Python:
//     engine_bench [ranks] [flat|ring] [bytes...]
// Every rank rewrites its buffer before each call, so that no call finds its input in a peer's
// cache. One JSON line a size and lane: the median over calls of the slowest rank's time.
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

namespace {

using namespace ngd;
using namespace ngd::comm;

constexpr double kTimeout = 120;
constexpr int kWarmUp = 3;

struct Settings {
  int ranks = 2;
  std::string algorithm = "auto";
  std::vector<std::size_t> sizes{8,         1024,    4096,    8192,     16 << 10, 64 << 10,
                                 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20};
};

Collective all_reduce(DType dtype, ReduceOp op, void* data, std::size_t count) {
  Collective collective;
  collective.kind = Kind::AllReduce;
  collective.op = op;
  collective.dtype = dtype;
  collective.count = count;
  collective.source = collective.destination = data;
  collective.site = "engine_bench";
  return collective;
}

// Medians of the slowest rank's times, in seconds.
double measure(Communicator& group, float* data, std::size_t count, Algorithm algorithm, int calls,
               int inner) {
  std::vector<double> times;
  Collective collective = all_reduce(DType::F32, ReduceOp::Sum, data, count);
  collective.algorithm = algorithm;
  for (int i = -kWarmUp; i < calls; ++i) {
    for (std::size_t k = 0; k < count; ++k) data[k] = static_cast<float>(1 + group.rank());
    Collective barrier;
    group.wait(group.submit(barrier), kTimeout);
    const auto start = std::chrono::steady_clock::now();
    for (int k = 0; k < inner; ++k) group.wait(group.submit(collective), kTimeout);
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    if (i >= 0) times.push_back(spent.count() / inner);
  }
  group.wait(group.submit(all_reduce(DType::F64, ReduceOp::Max, times.data(), times.size())),
             kTimeout);
  std::nth_element(times.begin(), times.begin() + calls / 2, times.end());
  return times[static_cast<std::size_t>(calls) / 2];
}

void report(const Settings& settings, const char* lane, std::size_t bytes, double seconds) {
  std::printf(
      "{\"ranks\": %d, \"algorithm\": \"%s\", \"lane\": \"%s\", \"bytes\": %zu, "
      "\"us\": %.3f, \"algbw_gbs\": %.3f}\n",
      settings.ranks, settings.algorithm.c_str(), lane, bytes, seconds * 1e6,
      static_cast<double>(bytes) / seconds * 1e-9);
  std::fflush(stdout);
}

void run(const Settings& settings, int rank, const std::string& key) {
  const auto group = make_shm_communicator(key, rank, settings.ranks, kTimeout);
  const Algorithm algorithm = algorithm_named(settings.algorithm);
  for (const std::size_t bytes : settings.sizes) {
    const std::size_t count = bytes / sizeof(float);
    const int calls = bytes <= 128 << 10 ? 400 : bytes <= 4 << 20 ? 60 : 15;
    const int inner = bytes <= 64 ? 100 : 1;  // the clock is no finer
    const SharedBlock block = group->allocate(bytes);
    const double shared =
        measure(*group, static_cast<float*>(block.data), count, algorithm, calls, inner);
    if (rank == 0) report(settings, "shared", bytes, shared);
    group->release(block);
    std::vector<float> data(count);
    const double staged = measure(*group, data.data(), count, algorithm, calls, inner);
    if (rank == 0) report(settings, "staged", bytes, staged);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  if (argc > 1) settings.ranks = std::atoi(argv[1]);
  if (argc > 2) settings.algorithm = argv[2];
  if (argc > 3) settings.sizes.clear();
  for (int i = 3; i < argc; ++i) settings.sizes.push_back(std::strtoull(argv[i], nullptr, 10));
  const std::string key = "engine_bench-" + std::to_string(::getpid());
  for (int rank = 1; rank < settings.ranks; ++rank)
    if (::fork() == 0) {
      try {
        run(settings, rank, key);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
        ::_exit(1);
      }
      ::_exit(0);
    }
  int result = 0;
  try {
    run(settings, 0, key);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank 0: %s\n", error.what());
    result = 1;
  }
  int status = 0;
  while (::wait(&status) > 0)
    if (status != 0) result = 1;
  return result;
}
