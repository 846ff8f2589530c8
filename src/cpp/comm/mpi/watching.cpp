// SPDX-License-Identifier: Apache-2.0
// What a wait in one group hears of the others that the same program needs.
#include "base/error.hpp"
#include "comm/mpi/mpi_communicator.hpp"

namespace ngd::comm::mpi {

void MpiCommunicator::expect_no_failure(const Header& mine) {
  if (watched_ == 0) return;
  if (state_ == State::Failed) throw Error(failure_kind_, failure_.text, failure_.ranks);
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank() && !has_left(peer)) check_not_ended(peer, mine, true);
}

// What a rank has said in another group, which the program needs, too.
void MpiCommunicator::fail_with_others() {
  try {
    family_->expect_no_failure_beside(*this, works_.front().header);
  } catch (const Error& error) {
    close_failed(error.kind(), error.what(), error.ranks());
    failure_told_ = true;
    throw;
  }
}

}  // namespace ngd::comm::mpi
