// SPDX-License-Identifier: Apache-2.0
// The choice of the algorithm of a collective among the ranks of a host:
//
//   kind                  condition                                     algorithm
//   barrier                                                             Inline
//   all_reduce, reduce    the ring is requested                         Ring
//                         at most kInlineBytes                          Inline
//                         all_reduce on several NUMA nodes,             NodesDirect or NodesStaged
//                           not of 16-bit floats
//                         otherwise                                     FlatDirect or FlatStaged
//   all other kinds       Cooperative::suits_all()                      Cooperative
//                         otherwise                                     Exchange
//
// Direct: the operands of all ranks are in the shared arena. Staged: they are not. kInlineBytes is
// 2 KiB (segment.hpp).
//
// All ranks must choose the same algorithm. A rank knows its own call when it submits it, and the
// peers' calls when all ranks have arrived. So the choice is made in three steps, below.
#pragma once

#include "comm/shm/task.hpp"

namespace ngd::comm::shm {

// Return the algorithm that the caller requests, or else the `preferred` one; never Auto. It is one
// of the options that must be equal on all ranks.
Algorithm requested_algorithm(const Collective& collective, Algorithm preferred,
                              int ranks) noexcept;

// 1. Called when the collective is submitted: choose Inline or Exchange, or leave the algorithm
// undecided.
void choose_from_call(const Group& group, Task& task, const Collective& collective);
// 2. Called when this rank's slot has the offsets of its operands. If the operands must be staged,
// choose a staged algorithm, which can start before the peers have arrived.
void choose_from_operands(const Group& group, Task& task);
// 3. Called when all ranks have arrived: choose the algorithm from the calls of all ranks.
void choose_from_all_calls(const Group& group, Task& task);

}  // namespace ngd::comm::shm
