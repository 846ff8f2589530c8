// SPDX-License-Identifier: Apache-2.0
// The rendezvous: the processes of a job find each other and map each other's segments (the memory
// that each rank shares).
//
// Rank 0 listens on an abstract Unix socket with one of the job's names (names.hpp). The other
// ranks connect. No file is created, so nothing is left over, however a process ends. The kernel
// reports the user at the other end, and ranks exchange messages only with processes of their own
// user. Then:
//   1. each rank sends Hello, with its segment and a pidfd of itself. Rank 0 checks that all ranks
//      have the same version of ngd and the same job size, and that no two have the same number
//   2. rank 0 sends to each rank the segments and pidfds of all other ranks
//   3. each rank maps the segments and sends Ready; when all are ready, rank 0 sends Go
//   4. each rank makes its communicator and sends Ready; when all are ready, rank 0 sends Go again,
//      so meet() returns only if all ranks have a communicator
// At any time either side may send Failure. Rank 0 relays it, and all ranks that have connected
// fail with the same message. A rank that fails after the last Go reports its failure in its
// segment. While ranks are missing, rank 0 sends the numbers of the missing ranks to the others.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "comm/communicator.hpp"
#include "comm/shm/job_ranks.hpp"

namespace ngd::comm::shm {

// Return the group of all ranks of this host. timeout_seconds: 0 = no limit. checked: true = the
// ranks compare their calls and check that their peers are alive; false only in measurements of the
// cost of these checks. job_ranks: the numbers of this host's ranks in the job. Throws Init,
// CollectiveTimeout, RankLost, OutOfMemory, Interrupted.
std::unique_ptr<Communicator> meet(const std::string& job_key, int rank, int size,
                                   double timeout_seconds, const std::function<bool()>& interrupt,
                                   bool checked = true, const JobRanks& job_ranks = {});

}  // namespace ngd::comm::shm
