// SPDX-License-Identifier: Apache-2.0
// The works (collectives, sends and receives) that this rank has submitted to a group and that are
// not complete.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/mpi/group_context.hpp"
#include "comm/mpi/headers.hpp"
#include "comm/mpi/pairs.hpp"
#include "comm/mpi/peer_reports.hpp"
#include "comm/mpi/pending_collective.hpp"
#include "comm/stats.hpp"

namespace ngd::comm::mpi {

class Works {
 public:
  Works(const GroupContext& group, Headers& headers, const PeerReports& reports);

  // Submit a collective, send or receive, and return at once. The header of a collective or a send
  // is posted to the peers in this call.
  Work submit(const Collective& collective);
  // Advance all collectives, sends and receives as far as possible. Throws the error that ends the
  // group: a mismatch, or the failure of a rank.
  void advance();
  // Cancel the MPI messages of all collectives, sends and receives, which then never complete.
  void drop() noexcept;

  // Return true if a submitted work is complete. After the group has failed or was closed, return
  // false for every send and receive.
  bool is_complete(Work work) const;
  // Return true if no collective, send or receive is pending.
  bool idle() const noexcept { return works_.empty() && pairs_.idle(); }
  // Return true if the data of a collective are being transferred, or a send or a receive is not
  // complete.
  bool moves_data() const noexcept;
  // Return a number that grows when a collective, send or receive completes or moves data.
  std::uint64_t moves() const noexcept { return moves_ + pairs_.moves(); }
  // Return the sequence number of the first collective that is not complete.
  std::uint64_t first_incomplete() const noexcept { return completed_ + 1; }
  // Return the first incomplete collective, or null.
  const PendingCollective* front() const noexcept {
    return works_.empty() ? nullptr : &works_.front();
  }

  // Return true if a work is a send or a receive, false if it is a collective.
  static bool is_pair(Work work) noexcept { return work.sequence >= Pairs::kFirst; }
  // The following functions take a work (collective, send or receive) that is not complete. For a
  // collective, call_of(), has_begun() and awaited_ranks() describe the first incomplete collective
  // of the group. This may be an earlier collective, which delays `work`: this rank receives the
  // peers' headers in the order of the collectives, and transfers the data of at most kActive
  // collectives at once. In all other cases, the functions describe `work` itself.
  const CallRecord& call_of(Work work) const;
  // Return true if the data of the collective are being transferred. False for a send or a receive.
  bool has_begun(Work work) const;
  // Return the ranks for which the work waits, by their numbers in the world.
  std::vector<int> awaited_ranks(Work work) const;
  // Return the entry of the statistics that counts `work`, even if an earlier collective delays it.
  Statistics::Entry stats_of(Work work) const;

  Statistics& statistics() noexcept { return statistics_; }
  const Statistics& statistics() const noexcept { return statistics_; }

 private:
  // Advance the first kActive collectives of works_, and remove complete ones from its front.
  void advance_collectives();
  // Advance a collective for which the headers of all peers have arrived. Return true if it is
  // complete. The message tags of the collective depend on `slot`, a number below kActive.
  bool advance(PendingCollective& work, int slot);
  // Complete a small collective, whose data have arrived with the headers.
  void finish_with_headers(PendingCollective& work) const;
  void begin(PendingCollective& work, int slot) const;
  // Advance the transfer of `work`. Return true if it is complete. Throw if a peer that the
  // transfer still needs has failed or left.
  bool advance_transfer(PendingCollective& work);
  // Add a complete collective to the statistics.
  void count(const PendingCollective& work);

  const GroupContext& group_;
  Headers& headers_;
  const PeerReports& reports_;
  const Algorithm preferred_;  // the algorithm of an all_reduce if the caller chose none
  Statistics statistics_;
  Pairs pairs_;
  std::deque<PendingCollective> works_;
  std::uint64_t submitted_ = 0;  // the number of the last submitted collective; the first is 1
  std::uint64_t completed_ = 0;  // all collectives up to this number are complete
  std::uint64_t moves_ = 0;
};

}  // namespace ngd::comm::mpi
