// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/process.hpp"

#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <future>
#include <string>
#include <thread>

#include "base/error.hpp"
#include "comm/communicator.hpp"

namespace ngd::comm {
namespace mpi {
namespace {

// MPI exists once a process, whatever number of communicators: so do these.
struct Process {
  std::atomic<pid_t> initialised_by{0};  // the process in which ngd called MPI_Init_thread
  std::atomic<int> failures{0};
  std::atomic<bool> left_to_mpi{false};
  std::atomic<bool> stuck{false};  // a thread of ours was left inside MPI
};
Process process;

void check_mpi(int code, const char* call) {
  if (code != kSuccess) fail(ErrorKind::Init, "ngd.init: ", call, " failed: ", error_text(code));
}

Endpoint duplicate(int fortran_handle) {
  const Library& mpi = library();
  if (mpi.finalized())
    fail(ErrorKind::Init, "ngd.init: MPI has already been finalized in this process");
  if (!mpi.initialised()) {
    check_mpi(mpi.initialise(), "MPI_Init_thread");
    process.initialised_by = ::getpid();
    check_mpi(mpi.return_errors(mpi.world), "MPI_Comm_set_errhandler");
  }
  const Comm parent = fortran_handle == -1 ? mpi.world : mpi.from_fortran(fortran_handle);
  if (parent == mpi.no_comm)
    fail(ErrorKind::Init, "ngd.init: the MPI communicator given is MPI.COMM_NULL");
  bool between_groups = false;
  check_mpi(mpi.is_between_groups(parent, between_groups), "MPI_Comm_test_inter");
  if (between_groups)
    fail(ErrorKind::Init, "ngd.init: the MPI communicator given is one between two groups: ",
         "Intercomm.Merge() makes one of both");
  Endpoint endpoint;
  check_mpi(mpi.duplicate(parent, endpoint.comm), "MPI_Comm_dup");
  check_mpi(mpi.return_errors(endpoint.comm), "MPI_Comm_set_errhandler");
  endpoint.rank = mpi.rank(endpoint.comm);
  endpoint.size = mpi.size(endpoint.comm);
  Comm host = mpi.no_comm;
  check_mpi(mpi.of_this_host(endpoint.comm, host), "MPI_Comm_split_type");
  endpoint.local_rank = mpi.rank(host);
  endpoint.local_size = mpi.size(host);
  mpi.free(host);
  return endpoint;
}

bool other_threads_may_call() {
  return !library().initialised() || library().threads() != Threads::Few;
}

}  // namespace

// Making a communicator blocks inside MPI until every rank has come, and MPI has no form of it that
// does not. It runs on a thread of its own, which is abandoned at the deadline.
Endpoint open_endpoint(int fortran_handle, double timeout_seconds) {
  if (left_to_mpi())
    fail(ErrorKind::Init, "ngd.init: expected a process whose messages have all ended; MPI still ",
         "holds memory of a collective that failed. Start a new process: this one can only exit");
  if (process.stuck)
    fail(ErrorKind::Init, "ngd.init: an earlier ngd.init is still blocked inside MPI");
  Endpoint endpoint;
  if (timeout_seconds == 0 || !other_threads_may_call()) {
    endpoint = duplicate(fortran_handle);
  } else {
    std::packaged_task<Endpoint()> task([fortran_handle] { return duplicate(fortran_handle); });
    std::future<Endpoint> result = task.get_future();
    std::thread(std::move(task)).detach();
    const auto limit = std::chrono::duration<double>(timeout_seconds);
    if (result.wait_for(limit) != std::future_status::ready) {
      process.stuck = true;
      fail(ErrorKind::CollectiveTimeout, "ngd.init: not every rank of the MPI job came within ",
           timeout_seconds, " s (NGD_TIMEOUT); MPI cannot say which");
    }
    endpoint = result.get();
  }
  process.failures = 0;
  return endpoint;
}

void mark_failed() noexcept { ++process.failures; }

void unmark_failed() noexcept {
  int left = process.failures;
  while (left > 0 && !process.failures.compare_exchange_weak(left, left - 1)) {
  }
}

void leave_to_mpi() noexcept { process.left_to_mpi = true; }
bool left_to_mpi() noexcept { return process.left_to_mpi; }

void owns_all_memory() {
  if (left_to_mpi())
    fail(ErrorKind::GroupClosed,
         "MPI still holds memory of a collective that failed: this process ", "can only exit");
}

std::string error_text(int code) {
  std::array<char, 1024> text = {};
  library().error_text(code, text.data(), text.size());
  return text[0] == '\0' ? concat("MPI error ", code) : std::string(text.data());
}

}  // namespace mpi

bool mpi_holds_memory() noexcept { return mpi::left_to_mpi(); }

void finalize_mpi() noexcept {
  if (mpi::process.initialised_by != ::getpid() || mpi::process.stuck) return;
  const mpi::Library& library = mpi::library();
  if (library.finalized()) return;
  if (mpi::process.failures > 0 || mpi::left_to_mpi()) {
    library.abort();
  } else {
    library.finalize();
  }
}

}  // namespace ngd::comm
