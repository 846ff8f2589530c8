// SPDX-License-Identifier: Apache-2.0
// Long collectives of a regular group: inside the host over shared memory, between counterparts
// over MPI, both at once for different parts of the data.
#pragma once

#include <memory>

#include "comm/collective.hpp"
#include "comm/hierarchical/hosts.hpp"
#include "comm/mpi/transfer.hpp"

namespace ngd::comm::hierarchical {

// A reduce-scatter inside each host; then each counterpart reduces its part over the hosts, in the
// canonical order, and sends it to the other counterparts; then an all-gather inside each host. A
// host sends 2 S (H - 1) / H bytes. Of 16-bit floats it sends half as much again, because partial
// sums travel as float32.
std::unique_ptr<mpi::Transfer> make_all_reduce(Hosts& hosts, int tag, const Collective& collective);

// From the root to its counterparts, host after host; then on each host to all ranks.
std::unique_ptr<mpi::Transfer> make_broadcast(Hosts& hosts, int tag, const Collective& collective);

// For each host: a reduce-scatter of its blocks inside my host, then my sums to my counterpart there.
std::unique_ptr<mpi::Transfer> make_reduce_scatter(Hosts& hosts, int tag,
                                                   const Collective& collective);

// My block to my counterparts; then for each host an all-gather of its blocks inside my host.
std::unique_ptr<mpi::Transfer> make_all_gather(Hosts& hosts, int tag, const Collective& collective);

}  // namespace ngd::comm::hierarchical
