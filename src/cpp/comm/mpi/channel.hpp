// SPDX-License-Identifier: Apache-2.0
// The ranks of a group as MPI knows them, and the tags that are the group's own.
#pragma once

#include <vector>

#include "comm/mpi/library.hpp"

namespace ngd::comm::mpi {

struct Channel {
  Comm comm = 0;
  std::vector<int> members;  // by rank of the group: its rank in `comm`, which messages name
  int rank = 0;              // mine in the group
  int first_tag = 0;

  int size() const noexcept { return static_cast<int>(members.size()); }
  int world(int peer) const noexcept { return members[static_cast<std::size_t>(peer)]; }
};

// A group's tags: its mail, its data between two ranks, and those of a few collectives at a time.
inline constexpr int kMailTag = 0;
inline constexpr int kPairTag = 1;
inline constexpr int kFirstDataTag = 2;
inline constexpr int kActive = 2;  // collectives whose data may move at once
inline constexpr int kTagsPerCollective = 8;
inline constexpr int kTagsPerGroup = 32;
static_assert(kFirstDataTag + kActive * kTagsPerCollective <= kTagsPerGroup);

}  // namespace ngd::comm::mpi
