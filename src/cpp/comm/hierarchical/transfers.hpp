// SPDX-License-Identifier: Apache-2.0
// Long collectives of a regular group: inside the host over shared memory, between counterparts
// over MPI, both at once for different parts of the data.
#pragma once

#include <memory>

#include "comm/collective.hpp"
#include "comm/hierarchical/hosts.hpp"
#include "comm/mpi/transfer.hpp"

namespace ngd::comm::hierarchical {

// Inside the host a reduce-scatter; each counterpart adds up its part of that slice, in the
// canonical order over hosts, and sends it to the others; inside the host an all-gather. A host
// sends 2 S (H - 1) / H bytes; of two-byte floats half as much again, for their partial sums travel
// as float32.
std::unique_ptr<mpi::Transfer> make_all_reduce(Hosts& hosts, int tag, const Collective& collective);

// From the root through its counterparts, host by host; on each host from there to all.
std::unique_ptr<mpi::Transfer> make_broadcast(Hosts& hosts, int tag, const Collective& collective);

// For each host in turn, its blocks' sums over my host, then mine of them to my counterpart there.
std::unique_ptr<mpi::Transfer> make_reduce_scatter(Hosts& hosts, int tag,
                                                   const Collective& collective);

// My block to my counterparts; the blocks of each host that have come, to all on my host.
std::unique_ptr<mpi::Transfer> make_all_gather(Hosts& hosts, int tag, const Collective& collective);

}  // namespace ngd::comm::hierarchical
