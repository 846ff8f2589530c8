// SPDX-License-Identifier: Apache-2.0
// The end of a group on this rank. The rank reports that it has failed or that it leaves, and gives
// its peers time to receive the report.
//
// A group that fails marks the process (mark_failed() in process.hpp). A marked process ends with
// MPI_Abort, because its peers may never call MPI_Finalize. The mark is removed if all ranks of the
// group have sent Left, and all messages of this rank were sent.
#pragma once

#include <cstdint>

#include "comm/mpi/group_context.hpp"
#include "comm/mpi/mailbox.hpp"

namespace ngd::comm::mpi {

class Teardown {
 public:
  Teardown(GroupContext& group, Mailbox& mailbox) : group_(group), mailbox_(mailbox) {}

  // Report a failure to all peers. `sequence` is the number of the first collective that this rank
  // will not complete. This rank has completed the collectives with lower numbers, so a peer may
  // still complete them too.
  void send_failure(const Failure& failure, std::uint64_t sequence) noexcept;
  // Return true when the report of a failure has been sent. While long messages are being
  // transferred (`moves_data`), MPI may mark the request of the report as complete too early. Then
  // return true only when all peers have also sent a Failed or Left message.
  bool has_sent_failure(bool moves_data);
  // Report that this rank leaves the group, and wait a short time for its peers to leave.
  void leave(bool has_failed, std::uint64_t sequence) noexcept;
  // Close the mailbox, which sends and receives the short messages of the group. If MPI still holds
  // messages, or a peer has not left, never free the MPI communicator. Otherwise, if this group has
  // added a failure mark to the process (mark_failed()), remove the mark.
  void finish() noexcept;

 private:
  // Record with mark_failed() that a group of this process has failed. Further calls for this group
  // do nothing.
  void mark() noexcept;
  // Wait until all peers have sent Left and all messages of this rank were sent, at most `seconds`.
  void await_peers(double seconds) noexcept;

  GroupContext& group_;
  Mailbox& mailbox_;
  bool is_marked_ = false;
};

}  // namespace ngd::comm::mpi
