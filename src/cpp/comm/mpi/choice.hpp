// SPDX-License-Identifier: Apache-2.0
// Chooses how the data of a collective over MPI travel: with its headers, by a transfer of the host
// layer, or by a transfer over MPI only.
#pragma once

#include <memory>

#include "comm/collective.hpp"
#include "comm/mpi/rank_set.hpp"
#include "comm/mpi/transfer.hpp"

namespace ngd::comm::mpi {

class HostLayer;

// Return the algorithm of an all_reduce, Flat or Ring; `preferred` is used if the caller chose
// none. Returns Auto for the other kinds.
Algorithm choose_algorithm(const Collective& collective, Algorithm preferred);

// Return true if every rank's contribution is so small that it travels with its header. The result
// is the same on all ranks.
bool travels_with_header(const Collective& collective, int size);

// Return the transfer of a collective that does not travel with its headers: of the host layer, if
// there is one and it has a transfer for this collective, else over MPI only. Its messages have the
// tags from `tag` on.
std::unique_ptr<Transfer> choose_transfer(const RankSet& group, HostLayer* hosts, int tag,
                                          const Collective& collective);

}  // namespace ngd::comm::mpi
