// SPDX-License-Identifier: Apache-2.0
// The ranks of a group by their numbers in an MPI communicator, and the tags of its messages.
#pragma once

#include <vector>

#include "comm/mpi/library.hpp"

namespace ngd::comm::mpi {

struct RankSet {
  Comm comm = 0;
  // members[r] is the world rank of the group's rank r. World ranks are the ranks in `comm`.
  std::vector<int> members;
  int rank = 0;  // the rank of this process in the group
  int first_tag = 0;

  int size() const noexcept { return static_cast<int>(members.size()); }
  // Return the world rank of rank `peer` of the group.
  int world(int peer) const noexcept { return members[static_cast<std::size_t>(peer)]; }
};

// The tags of a group, relative to its first tag. The short messages of the mailbox share one tag,
// and the data of all sends and receives share one. Up to kActive collectives transfer data at
// once, and each has kTagsPerCollective tags.
inline constexpr int kMailTag = 0;
inline constexpr int kPairTag = 1;
inline constexpr int kFirstDataTag = 2;
inline constexpr int kActive = 2;  // the number of collectives whose data may move at once
inline constexpr int kTagsPerCollective = 8;
inline constexpr int kTagsPerGroup = 32;
static_assert(kFirstDataTag + kActive * kTagsPerCollective <= kTagsPerGroup);

}  // namespace ngd::comm::mpi
