// SPDX-License-Identifier: Apache-2.0
// The choice of the transfer of a collective in a group over MPI. The first line of the table whose
// condition is true gives the transfer. Counterparts are the ranks at the same position on
// different hosts.
//
//   condition                                        transfer
//   small: travels_with_header()                     with the headers, in one message per rank
//   all_reduce with Algorithm::Ring                  a ring over MPI
//   every host of the group has the same number      hierarchical (hierarchical/hosts.cpp): shared
//     of ranks, more than one, and the kind has        memory inside a host, MPI between
//     such a transfer                                  counterparts
//   all_reduce, reduce, reduce_scatter               flat: each rank reduces one part of the data
//   broadcast                                        from each rank to the next (exchange.cpp)
//   all_gather, gather, scatter, all_to_all          one message per block (exchange.cpp)
//
// Small: at most kInlineBytes (3840 bytes, wire.hpp) per rank. A group whose ranks share one host
// uses shared memory instead of MPI, and shm/choose.hpp has its table.
#pragma once

#include <memory>

#include "comm/collective.hpp"
#include "comm/mpi/rank_set.hpp"
#include "comm/mpi/transfer.hpp"

namespace ngd::comm::mpi {

class HostLayer;

// Return the algorithm of an all_reduce: that of the collective if its caller has chosen one,
// otherwise `preferred` (the value of NGD_ALLREDUCE), and Flat if that is Auto too. Return Auto for
// all other kinds of collectives, which have no choice.
Algorithm choose_algorithm(const Collective& collective, Algorithm preferred);

// Return true if the data that each rank gives are so small that they are sent in one message with
// the header, the description of the collective. The result is the same on all ranks.
bool travels_with_header(const Collective& collective, int size);

// Return the transfer of a collective for which travels_with_header() is false. The result is the
// transfer of `hosts` (shared memory inside a host, MPI between hosts) if `hosts` is not null and
// has one for this collective. In all other cases, the result uses only MPI. The transfer may use
// kTagsPerCollective message tags, beginning with `tag`.
std::unique_ptr<Transfer> choose_transfer(const RankSet& group, HostLayer* hosts, int tag,
                                          const Collective& collective);

}  // namespace ngd::comm::mpi
