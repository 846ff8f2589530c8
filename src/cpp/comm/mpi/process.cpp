// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/process.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <future>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "comm/communicator.hpp"
#include "comm/fork_guard.hpp"
#include "comm/mpi/task_thread.hpp"

namespace ngd::comm {
namespace mpi {
namespace {

struct Process {
  std::atomic<bool> is_initialised{false};  // ngd has initialised MPI, on mpi_thread()
  std::atomic<int> failures{0};
  std::atomic<bool> left_to_mpi{false};
  std::atomic<bool> is_stuck{false};  // a thread of ngd is blocked inside MPI
};
Process process;

// The fork guard and the MPI thread are made by the first open_endpoint(). They are never
// destroyed, because they may be used until the process ends.
const ForkGuard& fork_guard() {
  static const ForkGuard& guard = *new ForkGuard;
  return guard;
}
TaskThread& mpi_thread() {
  static TaskThread& thread = *new TaskThread;
  return thread;
}

void check_mpi(int code, const char* call) {
  if (code != kSuccess) fail(ErrorKind::Init, "ngd.init: ", call, " failed: ", error_text(code));
}

// Initialise MPI if no code has done so, and return a duplicate of the communicator. Blocks until
// all its ranks have called this.
Endpoint duplicate(int fortran_handle) {
  const Library& mpi = library();
  if (mpi.finalized())
    fail(ErrorKind::Init, "ngd.init: MPI has already been finalized in this process");
  if (!mpi.initialised()) {
    check_mpi(mpi.initialise(), "MPI_Init_thread");
    process.is_initialised = true;
    check_mpi(mpi.return_errors(mpi.world), "MPI_Comm_set_errhandler");
  }
  const Comm parent = fortran_handle == -1 ? mpi.world : mpi.from_fortran(fortran_handle);
  if (parent == mpi.no_comm)
    fail(ErrorKind::Init, "ngd.init: the MPI communicator given is MPI.COMM_NULL");
  bool between_groups = false;
  check_mpi(mpi.is_between_groups(parent, between_groups), "MPI_Comm_test_inter");
  if (between_groups)
    fail(ErrorKind::Init, "ngd.init: the MPI communicator given is between two groups: ",
         "make one group of them by Intercomm.Merge()");
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

// Return true if a thread that did not initialise MPI may call it. Before MPI is initialised, this
// is true: ngd then initialises it on its own thread.
bool other_threads_may_call() {
  return !library().initialised() || library().threads() != Threads::Few;
}

}  // namespace

// Making an MPI communicator blocks inside MPI until every rank does the same. So it runs on its
// own thread, which is abandoned at the deadline. MPI is always initialised on that thread: see
// finalize_mpi.
Endpoint open_endpoint(int fortran_handle, double timeout_seconds) {
  if (fork_guard().in_child())
    fail(ErrorKind::Init,
         "ngd.init: expected a process of its own for each rank; this is a forked ",
         "child of a rank, which cannot use MPI. Start it as a new program (spawn) instead");
  if (left_to_mpi())
    fail(ErrorKind::Init, "ngd.init: expected a process without pending messages; MPI still ",
         "uses memory of a collective that failed. Start a new process: this one can only exit");
  if (process.is_stuck)
    fail(ErrorKind::Init, "ngd.init: an earlier ngd.init is still blocked inside MPI");
  Endpoint endpoint;
  if (!other_threads_may_call()) {
    endpoint = duplicate(fortran_handle);
  } else {
    std::future<Endpoint> result =
        mpi_thread().run([fortran_handle] { return duplicate(fortran_handle); });
    const auto limit = std::chrono::duration<double>(timeout_seconds);
    if (timeout_seconds > 0 && result.wait_for(limit) != std::future_status::ready) {
      process.is_stuck = true;
      fail(ErrorKind::CollectiveTimeout, "ngd.init: not every rank of the MPI job arrived within ",
           timeout_seconds, " s (NGD_TIMEOUT). MPI does not report which: read the output of each ",
           "rank, and of mpirun");
    }
    endpoint = result.get();
  }
  process.failures = 0;
  return endpoint;
}

void mark_failed() noexcept { ++process.failures; }

void unmark_failed() noexcept {
  int num_marks = process.failures;
  while (num_marks > 0 && !process.failures.compare_exchange_weak(num_marks, num_marks - 1)) {
  }
}

void leave_to_mpi() noexcept { process.left_to_mpi = true; }
bool left_to_mpi() noexcept { return process.left_to_mpi; }

void throw_if_left_to_mpi() {
  if (left_to_mpi())
    fail(ErrorKind::GroupClosed, "MPI still uses memory of a collective that failed: this process ",
         "can only exit");
}

void keep_for_good(const void* memory) noexcept {
  static std::mutex& mutex = *new std::mutex;
  static std::vector<const void*>& blocks = *new std::vector<const void*>;
  const std::lock_guard lock(mutex);
  try {
    blocks.push_back(memory);  // so that a leak checker finds a pointer to it
  } catch (const std::bad_alloc&) {
    // The vector `blocks` could not grow. `memory` is still never freed, but a leak checker
    // reports it, because `blocks` has no pointer to it.
  }
}

bool in_forked_child() noexcept { return fork_guard().in_child(); }

std::string error_text(int code) {
  std::array<char, 1024> text = {};
  library().error_text(code, text.data(), text.size());
  return text[0] == '\0' ? concat("MPI error ", code) : std::string(text.data());
}

}  // namespace mpi

bool mpi_holds_memory() noexcept { return mpi::left_to_mpi(); }

void finalize_mpi() noexcept {
  if (!mpi::process.is_initialised || mpi::in_forked_child() || mpi::process.is_stuck) return;
  const mpi::Library& library = mpi::library();
  if (library.finalized()) return;
  if (mpi::process.failures > 0 || mpi::left_to_mpi()) {
    library.abort();
    return;
  }
  try {
    mpi::mpi_thread().run([&library] { library.finalize(); }).wait();
  } catch (const std::exception&) {  // no memory for a task of mpi_thread()
    library.finalize();              // every MPI known to ngd allows this in any thread
  }
}

}  // namespace ngd::comm
