// SPDX-License-Identifier: Apache-2.0
// How the processes of a job find one another and map one another's segments.
//
// Rank 0 listens on an abstract Unix socket under one of the job's names (names.hpp); the others
// connect. No file is made, so nothing is left, however a process ends. The kernel vouches for the
// user id at the other end; nobody else is heard, or told anything. Then:
//   1. each sends Hello with its segment and a pidfd of itself; rank 0 checks that they agree
//   2. rank 0 sends every rank those of all others
//   3. each maps them and says Ready; when all are, rank 0 says Go
//   4. each makes its communicator; then Ready and Go once more
// At any time either side may send Failure, which rank 0 passes on to all: all ranks that are there
// fail with the same message. Who fails after the last Go of others has come says so in its
// segment. While ranks are missing, rank 0 keeps the others told which.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "comm/communicator.hpp"

namespace ngd::comm::shm {

// The group of all ranks. timeout_seconds: 0 = none. checked is Place's. Throws Init,
// CollectiveTimeout, RankLost, OutOfMemory, Interrupted.
std::unique_ptr<Communicator> meet(const std::string& job_key, int rank, int size,
                                   double timeout_seconds, const std::function<bool()>& interrupt,
                                   bool checked = true);

}  // namespace ngd::comm::shm
