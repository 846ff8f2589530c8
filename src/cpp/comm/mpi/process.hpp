// SPDX-License-Identifier: Apache-2.0
// MPI in this process: who initialised it, how it ends, and communicators of our own.
#pragma once

#include <string>

#include "comm/mpi/library.hpp"

namespace ngd::comm::mpi {

struct Endpoint {
  Comm comm = 0;  // ours alone; errors are returned, not fatal
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
};

// Initialises MPI if nobody has, and duplicates the world (-1) or the communicator with that
// Fortran handle. Collective over its ranks. Throws Init, CollectiveTimeout.
Endpoint open_endpoint(int fortran_handle, double timeout_seconds);

// While marks are left, this process must not finalize MPI: its peers may never come to do the
// same.
void mark_failed() noexcept;
void unmark_failed() noexcept;

// After a failure MPI may not let go of a message whose memory is the caller's, who may free it:
// then nothing may let MPI move messages any more. owns_all_memory() throws GroupClosed from there
// on.
void leave_to_mpi() noexcept;
bool left_to_mpi() noexcept;
void owns_all_memory();

// Takes memory that MPI may still use when its owner ends. It is never freed.
void keep_for_good(const void* memory) noexcept;

// Whether this process is a forked child of the one that opened the first endpoint. A child has
// copies of all objects here. It must not call MPI, which would receive messages for its parent.
bool in_forked_child() noexcept;

std::string error_text(int code);

}  // namespace ngd::comm::mpi
