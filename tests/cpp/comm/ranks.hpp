// SPDX-License-Identifier: Apache-2.0
// Run a function once per rank, on threads, and record the exception of each rank.
#pragma once

#include <unistd.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "comm/communicator.hpp"
#include "comm/shm/shm_communicator.hpp"

namespace ngd::comm {

struct Outcome {
  std::optional<ErrorKind> kind;  // nothing if the rank succeeded
  std::string message;
};

// The end of the message about a rank that did not arrive, if the ranks are threads.
inline std::string in_no_collective(int rank) {
  const std::string number = std::to_string(rank), process = std::to_string(::getpid());
  return "\n  rank " + number + " (process " + process +
         ") is not in a collective. It has called none of this group.\nA late rank hangs, is slow, "
         "was "
         "stopped, or has skipped this call. \"py-spy dump --pid " +
         process + "\" shows where it is. If it is only slow, set NGD_TIMEOUT to more seconds.";
}

inline constexpr double kSeconds = 60;  // enough for anything that works

template <class Body>
Outcome outcome_of(Body&& body) {
  try {
    body();
    return {};
  } catch (const Error& error) {
    return {error.kind(), error.what()};
  } catch (const std::exception& error) {
    return {ErrorKind::Internal, error.what()};
  }
}

inline std::vector<Outcome> run_ranks(std::vector<std::unique_ptr<Communicator>>& ranks,
                                      const std::function<void(Communicator&)>& body) {
  std::vector<Outcome> outcomes(ranks.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < ranks.size(); ++r)
    threads.emplace_back([&, r] { outcomes[r] = outcome_of([&] { body(*ranks[r]); }); });
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

inline std::vector<Outcome> run_ranks(int size, const std::function<void(Communicator&)>& body,
                                      const std::vector<int>& nodes = {}) {
  auto ranks = shm::make_thread_ranks(size, nodes);
  return run_ranks(ranks, body);
}

inline Collective all_reduce(ReduceOp op, DType dtype, const void* source, void* destination,
                             std::uint64_t count, const char* site = "test.py:1") {
  Collective collective;
  collective.kind = Kind::AllReduce;
  collective.op = op;
  collective.dtype = dtype;
  collective.count = count;
  collective.source = source;
  collective.destination = destination;
  collective.site = site;
  return collective;
}

inline Collective broadcast(DType dtype, const void* source, void* destination, std::uint64_t count,
                            int root, const char* site = "test.py:2") {
  Collective collective = all_reduce(ReduceOp::None, dtype, source, destination, count, site);
  collective.kind = Kind::Broadcast;
  collective.root = root;
  return collective;
}

inline Collective barrier(const char* site = "test.py:3") {
  Collective collective;
  collective.site = site;
  return collective;
}

}  // namespace ngd::comm
