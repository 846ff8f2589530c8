// SPDX-License-Identifier: Apache-2.0
// The choice of the algorithm of a collective among the ranks of a host. The first row that applies
// gives the algorithm:
//
//   kind                  condition                                algorithm
//   barrier                                                        Inline
//   all_reduce            the caller requests the ring             Ring
//   all_reduce, reduce    at most kInlineBytes (2 KiB)             Inline
//   all_reduce            the group has several NUMA nodes, and    NodesDirect or NodesStaged
//                         the dtype is not a 16-bit float
//   all_reduce, reduce                                             FlatDirect or FlatStaged
//   all other kinds       Cooperative::suits_all()                 Cooperative
//   all other kinds                                                Exchange
//
// The Direct algorithms are used if the operands of all ranks are in the shared arena, the Staged
// algorithms otherwise. The files flat.cpp, nodes.cpp, ring.cpp, inline.cpp, cooperative.cpp and
// exchange.cpp describe the algorithms.
//
// All ranks must choose the same algorithm. A rank knows its own call when it submits it, and the
// peers' calls when all ranks have arrived. So a rank chooses in three steps: choose_from_call(),
// choose_from_operands() and choose_from_all_calls().
#pragma once

#include "comm/shm/task.hpp"

namespace ngd::comm::shm {

// Return Ring if the caller requests the ring for an all_reduce of several ranks. Otherwise return
// Flat, which means: the functions below choose the algorithm, but not the ring. If the caller
// requests Auto, `preferred` is the request. All ranks must get the same result.
Algorithm requested_algorithm(const Collective& collective, Algorithm preferred,
                              int ranks) noexcept;

// Choose the algorithm of `task`, step 1 of 3: when this rank submits the collective. Set Inline
// for a barrier, and for an all_reduce or reduce of at most kInlineBytes that does not use the
// ring. Set no algorithm yet for other all_reduces and reduces. Set Exchange for all other kinds.
void choose_from_call(const Group& group, Task& task, const Collective& collective);
// Choose the algorithm of `task`, step 2 of 3: when this rank has written the offsets of its
// operands for its peers. Set FlatStaged or NodesStaged for an all_reduce or a reduce that still
// has no algorithm, does not use the ring, and has an operand of this rank in private memory. These
// algorithms can start before the peers have arrived. In all other cases, set no algorithm.
void choose_from_operands(const Group& group, Task& task);
// Choose the algorithm of `task`, step 3 of 3: when all ranks have arrived. If the task has no
// algorithm yet, set one that suits the calls of all ranks. Replace Exchange by Cooperative if the
// calls of all ranks allow it.
void choose_from_all_calls(const Group& group, Task& task);

}  // namespace ngd::comm::shm
