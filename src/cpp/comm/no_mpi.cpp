// SPDX-License-Identifier: Apache-2.0
// Replaces the folder mpi/ in builds without MPI.
#include "base/error.hpp"
#include "comm/communicator.hpp"

namespace ngd::comm {

std::unique_ptr<Communicator> make_mpi_communicator(int, double) {
  fail(ErrorKind::Unsupported,
       "ngd.init: expected a build of ngd with MPI; got one without it. Build it with "
       "NGD_DISTRIBUTED_ENABLE=OMPI");
}

std::unique_ptr<Communicator> make_hierarchical_communicator(int fortran_handle, double timeout,
                                                             const std::function<bool()>&) {
  return make_mpi_communicator(fortran_handle, timeout);
}

std::unique_ptr<Communicator> make_group_of(Communicator&, const std::vector<int>&, int,
                                            const std::string&, double timeout,
                                            const std::function<bool()>&) {
  return make_mpi_communicator(-1, timeout);
}

int next_group_number(Communicator&) { return 0; }

void finalize_mpi() noexcept {}

bool mpi_holds_memory() noexcept { return false; }

void load_mpi(const std::string&) { make_mpi_communicator(-1, 0); }

std::string mpi_version() { return ""; }

std::string mpis() { return ""; }

}  // namespace ngd::comm
