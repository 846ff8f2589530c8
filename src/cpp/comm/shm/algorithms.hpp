// SPDX-License-Identifier: Apache-2.0
// The algorithms: each advances a task, all of whose ranks have arrived, until its need is not met,
// and returns whether it is complete. None ever waits.
//
// What a task's destination holds is whole, and no peer reads or writes its buffers any more, once
// it is complete on this rank.
#pragma once

#include "comm/shm/group.hpp"

namespace ngd::comm::shm {

// Every payload rides beside its flag: each rank reduces all of them itself, in tree order.
void combine_inline(Group& group, const Task& task);

// Flat: each rank reduces its part of every rank's buffer, in tree order, for all ranks.
bool advance_flat_direct(Group& group, Task& task);
// Copies my first chunk into the staging area; may be called before the peers have arrived.
void begin_flat_staged(Group& group, Task& task);
bool advance_flat_staged(Group& group, Task& task);
std::uint64_t flat_chunks(const Task& task) noexcept;

// Ring: the sum travels around, part by part, and then the result.
bool advance_ring(Group& group, Task& task);

bool advance_broadcast(Group& group, Task& task);

}  // namespace ngd::comm::shm
