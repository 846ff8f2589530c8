// SPDX-License-Identifier: Apache-2.0
// Transfers of large collectives in a regular group, which has the same number of ranks on every
// host. They use shared memory inside a host and MPI between counterparts, the ranks with the same
// local rank on different hosts. Both work at once, for different parts of the data. H is the
// number of hosts, S the bytes of the operand.
#pragma once

#include <memory>

#include "comm/collective.hpp"
#include "comm/hierarchical/hosts.hpp"
#include "comm/mpi/transfer.hpp"

namespace ngd::comm::hierarchical {

// Three phases. After a reduce-scatter inside each host, each rank has a share of the data, summed
// over its host. The counterparts reduce their common share over the hosts: each of them reduces
// one part of it in the canonical order (base/reduce.hpp) and sends the result to its counterparts.
// An all-gather inside each host distributes the shares. A host sends 2 S (H - 1) / H bytes; for
// 16-bit floats 3 S (H - 1) / H, because partial sums travel as float32.
std::unique_ptr<mpi::Transfer> make_all_reduce(Hosts& hosts, int tag, const Collective& collective);

// The data travel from the root through its counterparts, from host to host. On each host, the
// counterpart of the root broadcasts them to all ranks.
std::unique_ptr<mpi::Transfer> make_broadcast(Hosts& hosts, int tag, const Collective& collective);

// For each host: the ranks of this host reduce-scatter the blocks of that host's ranks, and each
// rank sends its sum to its counterpart on that host. In the end, each rank adds the sums that it
// has received.
std::unique_ptr<mpi::Transfer> make_reduce_scatter(Hosts& hosts, int tag,
                                                   const Collective& collective);

// Each rank sends its block to its counterparts. For each host, the ranks of this host then
// all-gather the blocks of that host's ranks.
std::unique_ptr<mpi::Transfer> make_all_gather(Hosts& hosts, int tag, const Collective& collective);

}  // namespace ngd::comm::hierarchical
