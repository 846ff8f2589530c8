// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/family.hpp"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <exception>
#include <new>
#include <string>

#include "base/config.hpp"
#include "base/error.hpp"
#include "comm/messages.hpp"
#include "device/threads.hpp"

namespace ngd::comm::mpi {
namespace {

// The time between two calls of MPI by the progress thread. While data move, it is kShortestNap.
// While no data move, it doubles from call to call, up to kLongestNap. At 10 Gbit/s, 64 KB arrive
// in kShortestNap. The buffers of the sockets can hold that, so the sender need not stop.
constexpr auto kShortestNap = std::chrono::microseconds(50);
constexpr auto kLongestNap = std::chrono::microseconds(400);
constexpr auto kLongestRest = std::chrono::milliseconds(100);
// The number of MPI calls that Family::pump() makes. Open MPI polls its sockets only in every
// eighth call that finds no message (opal_progress). Of eight calls in a row, one polls them.
constexpr int kCallsForSockets = 8;
constexpr std::size_t kAtOnceBytes = 2048;  // MPI sends messages of up to this size eagerly

// Ask Linux for short time slices. A thread with short slices runs at once when it wakes, even if
// compute threads keep all cores busy. Linux 6.12 and later give short slices to every thread that
// asks (sched_setattr(2)).
void ask_for_short_slices() noexcept {
  struct {
    std::uint32_t size, policy;
    std::uint64_t flags;
    std::int32_t nice;
    std::uint32_t priority;
    std::uint64_t runtime_ns, deadline_ns, period_ns;
  } attributes{};
  attributes.size = sizeof attributes;
  attributes.policy = SCHED_OTHER;
  attributes.nice = ::getpriority(PRIO_PROCESS, 0);
  attributes.runtime_ns = 100'000;
  ::syscall(SYS_sched_setattr, 0, &attributes, 0);  // on failure, the time slices stay long
}

// Return true if NGD_PROGRESS asks for a progress thread. "auto" asks for one if the ranks are on
// several hosts and MPI was initialised with MPI_THREAD_MULTIPLE.
bool progress_thread_wanted(const Endpoint& endpoint) {
  const std::string wanted = config::progress();
  if (wanted != "auto" && wanted != "on" && wanted != "off")
    fail(ErrorKind::Init, "NGD_PROGRESS: expected one of auto, on, off; got '", wanted, "'");
  const bool is_possible = endpoint.size > 1 && library().threads() == Threads::Any;
  if (wanted == "on" && !is_possible && endpoint.size > 1)
    fail(ErrorKind::Init, "NGD_PROGRESS=on, but MPI was initialised without MPI_THREAD_MULTIPLE");
  return is_possible &&
         (wanted == "on" || (wanted == "auto" && endpoint.local_size < endpoint.size));
}

}  // namespace

Family::Family(const Endpoint& endpoint) : endpoint_(endpoint) {
  tag_limit_ = library().largest_tag(endpoint.comm, tag_limit_);
  if (!progress_thread_wanted(endpoint)) return;
  // Block all signals in the new thread: the threads of the program handle them.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::make_unique<std::thread>([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Family::~Family() {
  if (in_forked_child()) {
    static_cast<void>(thread_.release());
    static_cast<void>(gate_.release());
    return;
  }
  if (thread_) {
    {
      const std::lock_guard lock(mutex_);
      gate_->stop();
    }
    thread_->join();
  }
  if (is_clean_ && !left_to_mpi() && !library().finalized()) library().free(endpoint_.comm);
}

void Family::progress() noexcept {
  busy_.clear();
  for (Member* member : members_)
    if (member->progress()) busy_.push_back(member);
  gate_->set_in_flight(!busy_.empty());
}

bool Family::in_flight_beside(const Member& member) const noexcept {
  return std::any_of(busy_.begin(), busy_.end(), [&](Member* busy) { return busy != &member; });
}

void Family::fail(ErrorKind kind, std::string_view text, std::span<const int> ranks) noexcept {
  if (failed_) return;
  failed_ = true;
  failure_.kind = kind;
  try {
    failure_.text = text;  // first, so that the text is kept if there is no memory for the ranks
    failure_.ranks.assign(ranks.begin(), ranks.end());
    if (ranks.empty()) failure_.ranks.push_back(endpoint_.rank);
  } catch (const std::bad_alloc&) {
    // If memory is short, the text or the ranks of failure_ stay incomplete.
  }
  for (Member* member : members_) member->send_failure(failure_);
  const bool is_long = failure_.text.size() > kAtOnceBytes ||
                       std::any_of(members_.begin(), members_.end(),
                                   [](Member* each) { return each->moves_data(); });
  const std::chrono::duration<double> most(is_long ? kLeaveSeconds : kQuickLeaveSeconds);
  const auto limit = std::chrono::steady_clock::now() + most;
  const auto has_sent_failure = [](Member* member) { return member->has_sent_failure(); };
  try {
    while (!std::all_of(members_.begin(), members_.end(), has_sent_failure) &&
           std::chrono::steady_clock::now() < limit)
      std::this_thread::sleep_for(std::chrono::microseconds(100));
  } catch (const std::exception&) {
    // Some peers could not be notified. They get a timeout error at their own deadlines.
  }
  for (Member* member : members_) member->drop_works();
}

void Family::throw_failure(std::string_view call) {
  if (!has_thrown_) {
    has_thrown_ = true;
    throw Error(failure_.kind, failure_.text, failure_.ranks);
  }
  fail_of(failure_.ranks, ErrorKind::GroupClosed, closed_by_failure(call, failure_.text));
}

double Family::seconds_to_leave() noexcept {
  const auto now = std::chrono::steady_clock::now();
  if (leave_end_ == std::chrono::steady_clock::time_point{})
    leave_end_ = now + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                           std::chrono::duration<double>(kLeaveSeconds));
  return std::max(0.0, std::chrono::duration<double>(leave_end_ - now).count());
}

void Family::expect_no_failure_beside(const Member& member, const CallRecord& mine) {
  for (Member* other : members_)
    if (other != &member) other->expect_no_failure(mine);
}

void Family::pump() const noexcept {
  if (left_to_mpi()) return;  // a call of MPI could write to memory that was freed
  for (int i = 0; i < kCallsForSockets; ++i) library().poke(tag_limit_, endpoint_.comm);
}

std::uint64_t Family::moves() const noexcept {
  std::uint64_t sum = 0;
  for (const Member* member : members_) sum += member->moves();
  return sum;
}

// Call a function of the C++ runtime and functions of MPI that use thread-local variables. The C
// library allocates the thread-local variables of a shared library at their first use in each
// thread, and ends the process if it has no memory for them. So the progress thread calls this when
// it starts, before memory can run out.
void Family::touch_thread_locals() const noexcept {
  static_cast<void>(std::uncaught_exceptions());
  pump();
}

void Family::run() {
  ask_for_short_slices();
  device::OffKernelCores off_kernel_cores;
  std::unique_lock lock(mutex_);
  touch_thread_locals();
  auto nap = kShortestNap;
  while (!gate_->is_stopped()) {
    if (!gate_->is_needed()) {
      gate_->sleep_until_needed(lock, kLongestRest);
      nap = kShortestNap;
      if (!gate_->is_needed()) continue;
      off_kernel_cores.follow();
    }
    const std::uint64_t before = moves();
    pump();
    progress();
    nap = moves() != before ? kShortestNap : std::min(nap * 2, kLongestNap);
    gate_->nap(lock, nap);
  }
}

}  // namespace ngd::comm::mpi
