// SPDX-License-Identifier: Apache-2.0
// How the processes of a job find one another and map one another's segments.
//
// Rank 0 listens on an abstract Unix socket under one of the job's names (names.hpp); the others
// connect. No file is made, so nothing is left, however a process ends. The kernel vouches for the
// user id at the other end; nobody else is heard, or told anything. Then:
//   1. each sends Hello with its segment and a pidfd of itself; rank 0 checks that they agree
//   2. rank 0 sends every rank those of all others
//   3. each maps them and says Ready; when all are, rank 0 says Go
// At any time either side may send Failure, which rank 0 passes on to all: all ranks that are there
// fail with the same message. While ranks are missing, rank 0 keeps the others told which.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/shm/liveness.hpp"
#include "comm/shm/segment.hpp"

namespace ngd::comm::shm {

struct Assembly {
  std::unique_ptr<Memory> memory;
  std::unique_ptr<Liveness> liveness;
  int cores = 1;  // that the ranks have together
};

// timeout_seconds: 0 = none. Throws Init, CollectiveTimeout, RankLost, OutOfMemory, Interrupted.
Assembly assemble(const std::string& job_key, int rank, int size, double timeout_seconds,
                  const std::function<bool()>& interrupt);

}  // namespace ngd::comm::shm
