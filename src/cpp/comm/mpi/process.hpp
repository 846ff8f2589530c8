// SPDX-License-Identifier: Apache-2.0
// MPI in this process: its initialisation, its end, and the MPI communicators that only ngd uses.
#pragma once

#include <string>

#include "comm/mpi/library.hpp"

namespace ngd::comm::mpi {

// An MPI communicator that only ngd uses, with the rank of this process and the number of ranks, in
// the communicator and on this host.
struct Endpoint {
  Comm comm = 0;  // used only by ngd; errors are returned, not fatal
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
};

// Initialise MPI if no code has done so, and duplicate the MPI communicator with the Fortran handle
// `fortran_handle` (-1: MPI_COMM_WORLD). All ranks of that communicator call this. Throws Init,
// CollectiveTimeout.
Endpoint open_endpoint(int fortran_handle, double timeout_seconds);

// mark_failed() adds a failure mark to the process, and unmark_failed() removes one. A group adds a
// mark when it fails. While the process has marks, finalize_mpi() calls MPI_Abort and not
// MPI_Finalize. MPI_Finalize waits for the peers, which may never call it.
void mark_failed() noexcept;
void unmark_failed() noexcept;

// leave_to_mpi() records that MPI may still use the memory of a message after a failure. The caller
// may free that memory, so from then on ngd makes no MPI call that moves messages. left_to_mpi()
// returns true after that, and throw_if_left_to_mpi() throws GroupClosed.
void leave_to_mpi() noexcept;
bool left_to_mpi() noexcept;
void throw_if_left_to_mpi();

// Never free `memory`, because MPI may still use it after its owner is destroyed. A pointer to it
// is kept for leak checkers.
void keep_for_good(const void* memory) noexcept;

// Return true in a forked child of the process that has called open_endpoint(). The child has
// copies of the parent's objects. It must not call MPI, which would receive the messages of the
// parent.
bool in_forked_child() noexcept;

std::string error_text(int code);

}  // namespace ngd::comm::mpi
