// SPDX-License-Identifier: Apache-2.0
// The headers of a group's collectives. Every rank sends the header of each collective to all
// ranks, and compares the headers of its peers with its own before any data move.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/computations.hpp"
#include "comm/mpi/group_context.hpp"
#include "comm/mpi/mailbox.hpp"
#include "comm/mpi/pending_collective.hpp"

namespace ngd::comm::mpi {

class Headers {
 public:
  // A computation is a hash of all that a compiled step computes. `held` has the computations of
  // the steps that this rank has loaded. agree() (identity.hpp) needs `held` to compare two
  // headers.
  Headers(const GroupContext& group, const Computations& held)
      : group_(group), held_(held), mailbox_(group.ranks) {}

  // Return the mailbox through which all short messages of the group travel.
  Mailbox& mailbox() noexcept { return mailbox_; }

  // Send the header and the payload of `work` to all other ranks, without waiting.
  void post(const PendingCollective& work) {
    mailbox_.post(work.header, work.payload.data(), work.payload.size());
  }
  // Take the next header of each peer for the collective `work`. Returns false if a header has not
  // arrived. Throws CollectiveMismatch as soon as a header that has arrived differs from that of
  // this rank.
  bool collect(PendingCollective& work);

  // Find the first collective with missing headers, and return the world ranks that have not sent
  // their headers for it.
  std::vector<int> missing() const;
  // Return lines such as "rank 2 called all_reduce(sum) of 8 float32." for a timeout error. There
  // is one line for each rank of `world_ranks` from which the mailbox still holds a header, the
  // message that announces a call.
  std::vector<std::string> calls_of(const std::vector<int>& world_ranks);

 private:
  void check_counts(const PendingCollective& work, int peer) const;
  // Return the error text for two calls that differ. If both have program texts, or their layouts
  // differ, first exchange details with `peer`, and wait up to 1 s for its details.
  std::string describe_mismatch(const PendingCollective& mine, int peer, const Header& theirs);
  std::optional<std::string> exchange_details(const PendingCollective& mine, int peer);

  const GroupContext& group_;
  const Computations& held_;
  Mailbox mailbox_;
};

}  // namespace ngd::comm::mpi
