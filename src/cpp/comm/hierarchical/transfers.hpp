// SPDX-License-Identifier: Apache-2.0
// Transfers of large collectives in a regular group, which has the same number of ranks on every
// host. They use shared memory inside a host, and MPI between counterparts: the ranks with the same
// local rank on different hosts. While one part of the data is in shared memory, MPI transfers
// another part. In the comments below, H is the number of hosts, and S the number of bytes of the
// operand.
#pragma once

#include <memory>

#include "comm/collective.hpp"
#include "comm/hierarchical/hosts.hpp"
#include "comm/mpi/transfer.hpp"

namespace ngd::comm::hierarchical {

// The all_reduce has three phases. After a reduce-scatter inside each host, each rank has a share
// of the data, summed over its host. Counterparts are the ranks at the same position on different
// hosts, so their shares are the same elements. The counterparts reduce their shares over the
// hosts: each of them reduces one part of the share in the canonical order (base/reduce.hpp) and
// sends the result to its counterparts. An all-gather inside each host distributes the shares. A
// host sends 2 S (H - 1) / H bytes (H hosts, S bytes of the operand). For 16-bit floats, it sends 3
// S (H - 1) / H bytes, because partial sums are sent as float32.
std::unique_ptr<mpi::Transfer> make_all_reduce(Hosts& hosts, int tag, const Collective& collective);

// The broadcast. The hosts form a chain that begins with the root's host. The leader of a host is
// the rank with the local rank of the root. Each leader receives the data from the leader of the
// previous host, broadcasts them inside its host, and sends them to the leader of the next host.
std::unique_ptr<mpi::Transfer> make_broadcast(Hosts& hosts, int tag, const Collective& collective);

// The reduce_scatter. In the end, each rank has its block, summed over all ranks. First, each host
// runs one local reduce-scatter per host h of the group, on the blocks that the ranks of h need.
// Each rank gets the block of its counterpart on h (the rank with the same local rank), summed over
// its own host, and sends this sum to the counterpart. Finally, each rank adds the sums of its
// block from all hosts.
std::unique_ptr<mpi::Transfer> make_reduce_scatter(Hosts& hosts, int tag,
                                                   const Collective& collective);

// The all_gather. Each rank sends its block to its counterparts: the ranks with the same local rank
// on the other hosts. So the ranks of a host together hold the blocks of all hosts. They run one
// local all-gather per host of the group, of the blocks of that host's ranks.
std::unique_ptr<mpi::Transfer> make_all_gather(Hosts& hosts, int tag, const Collective& collective);

}  // namespace ngd::comm::hierarchical
