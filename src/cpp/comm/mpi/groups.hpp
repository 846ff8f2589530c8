// SPDX-License-Identifier: Apache-2.0
// Makes groups over MPI in three ways: a group of all ranks of an MPI communicator, the groups of a
// split, and a group in whose construction only its own ranks take part.
//
// The world group and all groups made from it share one MPI communicator, and differ in their
// message tags: group `number` has kTagsPerGroup tags. Groups that share a rank have different
// numbers.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/mpi/mpi_communicator.hpp"

namespace ngd::comm::mpi {

// Return a group of all ranks of the MPI communicator with this Fortran handle; -1: MPI_COMM_WORLD.
std::unique_ptr<MpiCommunicator> open_world(int fortran_handle, double timeout_seconds);

// Split a group over MPI. Arguments and result are those of Communicator::try_split().
std::optional<std::unique_ptr<Communicator>> try_split_group(MpiCommunicator& parent, int color,
                                                             int key);

// Return the lowest number that is above the numbers of all groups of this rank.
int next_group(const MpiCommunicator& world);
// Return a group of the ranks `members` of `world`. Only these ranks call the function, which does
// the work of make_group_of() (communicator.hpp).
std::unique_ptr<Communicator> make_group(MpiCommunicator& world, const std::vector<int>& members,
                                         int number, const HostLayer::Rendezvous& rendezvous);

// Run call(), a step in the construction of `group` that other ranks run too. If it throws, close
// `group` and notify these ranks of the failure.
template <class Call>
void or_abort(MpiCommunicator& group, Call&& call) {
  notify_on_failure(call, [&](const FailureView& failure) {
    group.give_up(failure.kind, failure.text, failure.ranks);
  });
}

}  // namespace ngd::comm::mpi
