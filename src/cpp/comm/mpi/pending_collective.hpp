// SPDX-License-Identifier: Apache-2.0
// A collective that this rank has submitted: it waits for the headers of all peers, then for its
// transfer.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/collective.hpp"
#include "comm/mpi/rank_set.hpp"
#include "comm/mpi/transfer.hpp"
#include "comm/mpi/wire.hpp"
#include "comm/stats.hpp"

namespace ngd::comm::mpi {

struct PendingCollective {
  Collective collective;
  std::vector<std::uint64_t> counts;  // copies of the caller's counts
  std::vector<std::uint64_t> receive_counts;
  Header header;
  std::string details;             // sent after a mismatch, see details.hpp
  std::vector<std::byte> payload;  // sent with the header: small data, or an all_to_all's counts
  std::vector<Message> received;   // messages of the peers, by rank; empty until all have arrived
  std::unique_ptr<Transfer> transfer;
  bool complete = false;
  Statistics::Entry stats = 0;
  std::chrono::steady_clock::time_point start;
  // The rank that arrived last: the highest rank without a header in the last check that found
  // headers missing. -1: no check has found a missing header.
  int last_missing = -1;
};

// Store a collective in `work`, with the header that this rank sends. Of the caller's memory, only
// the source and the destination are used afterwards: all other arrays are copied.
void prepare(PendingCollective& work, const Collective& submitted, const RankSet& group,
             Algorithm preferred, std::uint64_t sequence);

}  // namespace ngd::comm::mpi
