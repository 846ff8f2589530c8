// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/process.hpp"

#include <unistd.h>

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
  if (code != MPI_SUCCESS) fail(ErrorKind::Init, "ngd.init: ", call, " failed: ", error_text(code));
}

Endpoint duplicate(int fortran_handle) {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized) fail(ErrorKind::Init, "ngd.init: MPI has already been finalized in this process");
  int initialised = 0;
  MPI_Initialized(&initialised);
  if (!initialised) {
    int provided = 0;
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
    process.initialised_by = ::getpid();
    check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN),
              "MPI_Comm_set_errhandler");
  }
  const MPI_Comm parent = fortran_handle == -1 ? MPI_COMM_WORLD : MPI_Comm_f2c(fortran_handle);
  if (parent == MPI_COMM_NULL)
    fail(ErrorKind::Init, "ngd.init: the MPI communicator given is MPI.COMM_NULL");
  int between_groups = 0;
  check_mpi(MPI_Comm_test_inter(parent, &between_groups), "MPI_Comm_test_inter");
  if (between_groups)
    fail(ErrorKind::Init, "ngd.init: the MPI communicator given is one between two groups: ",
         "Intercomm.Merge() makes one of both");
  Endpoint endpoint;
  check_mpi(MPI_Comm_dup(parent, &endpoint.comm), "MPI_Comm_dup");
  check_mpi(MPI_Comm_set_errhandler(endpoint.comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  MPI_Comm_rank(endpoint.comm, &endpoint.rank);
  MPI_Comm_size(endpoint.comm, &endpoint.size);
  MPI_Comm host = MPI_COMM_NULL;
  check_mpi(
      MPI_Comm_split_type(endpoint.comm, MPI_COMM_TYPE_SHARED, endpoint.rank, MPI_INFO_NULL, &host),
      "MPI_Comm_split_type");
  MPI_Comm_rank(host, &endpoint.local_rank);
  MPI_Comm_size(host, &endpoint.local_size);
  MPI_Comm_free(&host);
  return endpoint;
}

bool other_threads_may_call() {
  int initialised = 0;
  MPI_Initialized(&initialised);
  if (!initialised) return true;
  int provided = MPI_THREAD_SINGLE;
  MPI_Query_thread(&provided);
  return provided >= MPI_THREAD_SERIALIZED;
}

}  // namespace

// Making a communicator blocks inside MPI until every rank has come, and MPI has no form of it that
// does not. It runs on a thread of its own, which is abandoned at the deadline.
Endpoint open_endpoint(int fortran_handle, double timeout_seconds) {
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
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) return concat("MPI error ", code);
  return std::string(text, static_cast<std::size_t>(length));
}

}  // namespace mpi

void finalize_mpi() noexcept {
  int finalized = 0;
  if (mpi::process.initialised_by != ::getpid() || mpi::process.stuck) return;
  MPI_Finalized(&finalized);
  if (finalized) return;
  if (mpi::process.failures > 0) {
    MPI_Abort(MPI_COMM_WORLD, 1);
  } else {
    MPI_Finalize();
  }
}

std::string mpi_library_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  return text;
}

}  // namespace ngd::comm
