// SPDX-License-Identifier: Apache-2.0
// The data that the parts of one communicator over MPI have in common.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "comm/messages.hpp"
#include "comm/mpi/family.hpp"
#include "comm/mpi/host_layer.hpp"
#include "comm/mpi/rank_set.hpp"

namespace ngd::comm::mpi {

struct GroupContext {
  enum class State { Open, Failed, Closed };

  const std::shared_ptr<Family> family;
  const RankSet ranks;
  std::unique_ptr<HostLayer> hosts;  // null: the group uses only MPI
  std::atomic<State> state = State::Open;

  int rank() const noexcept { return ranks.rank; }
  int size() const noexcept { return ranks.size(); }
  // Return the world rank of rank `peer` of this group. worlds() does this for several ranks.
  int world(int peer) const noexcept { return ranks.world(peer); }
  std::vector<int> worlds(std::vector<int> peers) const {
    for (int& peer : peers) peer = world(peer);
    return peers;
  }
  // Return true if this group has all ranks of the world.
  bool is_world() const noexcept { return size() == family->endpoint().size; }

  // Throw if this group is closed, or if the world group or any group made from it has failed. The
  // first call in these groups after a failure throws the failure itself, later calls GroupClosed.
  void require_open(const char* call) const {
    if (state != State::Closed && family->failed()) family->throw_failure(call);
    if (state == State::Closed) fail(ErrorKind::GroupClosed, closed_in_order(call));
  }
};

}  // namespace ngd::comm::mpi
