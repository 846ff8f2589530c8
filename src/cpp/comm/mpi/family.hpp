// SPDX-License-Identifier: Apache-2.0
// A family: the group of all ranks and the groups made from it. It has one MPI communicator, one
// lock and one progress thread.
//
// MPI moves data only while it is called. To make progress is to call MPI, and to advance all
// pending works (collectives, sends and receives) that can be advanced. A wait in one group makes
// progress in all groups of the family. While no thread waits and works are pending, the progress
// thread makes progress at intervals, which grow while no data move (docs/adr/0015). It runs on
// cores that the compute threads do not use, if it knows those cores.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "comm/mpi/process.hpp"
#include "comm/mpi/progress_gate.hpp"
#include "comm/mpi/wire.hpp"

namespace ngd::comm::mpi {

// The interface of a group for its family: the world group and all groups made from it. The family
// calls these functions with its lock held.
class Member {
 public:
  virtual ~Member() = default;
  // Advance the pending collectives, sends and receives of this group as far as possible now. An
  // error fails the family (the world group and all groups made from it). Return true while any are
  // pending.
  virtual bool progress() noexcept = 0;
  // Return a counter that grows whenever a collective, send or receive of this group advances. If
  // it has not changed since the last call, no data have moved.
  virtual std::uint64_t moves() const noexcept = 0;
  // Called when this group, or another group of its family, has failed. Send the failure to the
  // peers of this group, without waiting until it is sent.
  virtual void send_failure(const Failure& failure) noexcept = 0;
  // Continue to send the messages of send_failure(). Return true when all of them are sent.
  virtual bool has_sent_failure() { return true; }
  // Return true if long messages are being transferred. MPI sends the message of send_failure()
  // only after them.
  virtual bool moves_data() const noexcept { return false; }
  // Called after a failure: end all works (collectives, sends and receives). If MPI still holds the
  // memory of one of their messages, left_to_mpi() is true afterwards.
  virtual void drop_works() noexcept = 0;
  // Called while this rank waits in another group: throw the failure that a rank of this group has
  // reported. Do nothing if no compiled step that is running watches this group
  // (Communicator::watch). `mine` is the call in which this rank waits, for the error message.
  virtual void expect_no_failure(const CallRecord& mine) { static_cast<void>(mine); }
};

// The longest time that a rank waits for the delivery of its last message: that it has failed, or
// that it leaves. kQuickLeaveSeconds applies in two cases: the group is closed without a failure,
// or the failure text is short and no long messages are pending.
inline constexpr double kLeaveSeconds = 1.0;
inline constexpr double kQuickLeaveSeconds = 0.05;

class Family {
 public:
  explicit Family(const Endpoint& endpoint);
  ~Family();
  Family(const Family&) = delete;
  Family& operator=(const Family&) = delete;

  // Return the MPI communicator of the world group and all groups made from it, with this rank and
  // the number of ranks.
  const Endpoint& endpoint() const noexcept { return endpoint_; }
  // Return the lock that protects all groups of the family (the world group and all groups made
  // from it) and every MPI call on their communicator.
  std::mutex& mutex() noexcept { return mutex_; }

  // The functions from here to tag_limit() must be called with the lock (mutex()) held.
  void add(Member& member) {
    busy_.reserve(members_.size() + 1);  // now, because progress() must not allocate memory
    members_.push_back(&member);
  }
  void remove(Member& member) noexcept { std::erase(members_, &member); }
  // Advance the pending collectives, sends and receives of all groups as far as possible now.
  void progress() noexcept;
  // Return true if a group other than `member` had a pending collective, send or receive at the end
  // of the last progress().
  bool in_flight_beside(const Member& member) const noexcept;
  // Fail the world group and all groups made from it: notify their peers, and end all their
  // collectives, sends and receives. A second call keeps the first failure. `ranks` are the world
  // ranks that the error names; empty: this rank.
  void fail(ErrorKind kind, std::string_view text, std::span<const int> ranks) noexcept;
  void fail(const FailureView& failure) noexcept {
    fail(failure.kind, failure.text, failure.ranks);
  }
  // Run a call. If it throws, call fail() and throw the error; later calls in all groups throw
  // GroupClosed.
  template <class Call>
  void or_fail(Call&& call) {
    notify_on_failure(call, [this](const FailureView& failure) {
      fail(failure);
      mark_thrown();
    });
  }
  // Record that the failure given to fail() is thrown. The caller calls this before it throws the
  // failure. Later calls in all groups throw GroupClosed, so the failure is thrown only once.
  void mark_thrown() noexcept { has_thrown_ = true; }
  // Throw the failure given to fail(). If it was thrown before (mark_thrown()), throw GroupClosed
  // with the text of the failure.
  [[noreturn]] void throw_failure(std::string_view call);
  // Return the seconds that are left for closing a group after a failure. The world group and all
  // groups made from it share one limit.
  double seconds_to_leave() noexcept;
  // Throw the failure that a rank has reported in a group other than `member`, if a running
  // compiled step watches that group (Communicator::watch). `mine` is the call in which this rank
  // waits.
  void expect_no_failure_beside(const Member& member, const CallRecord& mine);
  // Called after a collective, send or receive is submitted, so that the progress thread advances
  // it while no caller waits. Not called for a small collective (travels_with_header()),
  // whose data are sent in the same messages as its description.
  void submitted() noexcept {
    gate_->set_in_flight(true);
    gate_->wake_thread();
  }
  void abandon() noexcept { is_clean_ = false; }  // MPI holds messages: never free the communicator
  // The number that this rank proposes for the next group: above the numbers of all its groups.
  int next_group = 1;
  // Return the largest message tag that this MPI allows. ngd sends no message with this tag.
  int tag_limit() const noexcept { return tag_limit_; }

  bool failed() const noexcept { return failed_; }  // may be called without the lock

  // A guard for the wait of a caller: the progress thread sleeps while the guard exists. Construct
  // the guard without holding the lock, mutex().
  class Waiting {
   public:
    explicit Waiting(Family& family) : gate_(*family.gate_) { gate_.begin_wait(); }
    ~Waiting() {
      if (!in_forked_child()) gate_.end_wait();
    }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    ProgressGate& gate_;
  };

 private:
  // Run the progress thread, until the destructor stops it.
  void run();
  void touch_thread_locals() const noexcept;
  // Call MPI several times, so that it moves data and polls its sockets. Do nothing after
  // leave_to_mpi(), because MPI might then write to memory that was freed.
  void pump() const noexcept;
  // Return the sum over all groups of moves(), a counter that grows when a collective, send or
  // receive of the group advances.
  std::uint64_t moves() const noexcept;

  const Endpoint endpoint_;
  int tag_limit_ = 32767;
  bool is_clean_ = true;
  std::atomic<bool> failed_{false};
  bool has_thrown_ = false;
  Failure failure_;
  std::chrono::steady_clock::time_point leave_end_{};
  std::mutex mutex_;
  std::vector<Member*> members_;
  // The groups with a pending collective, send or receive after the last progress().
  std::vector<Member*> busy_;
  // `gate_` decides when the progress thread (`thread_`) runs. A forked child has no progress
  // thread, so it leaks both objects. If the child destroyed `gate_`, the destructor of its
  // condition variable would wait for that thread.
  std::unique_ptr<ProgressGate> gate_ = std::make_unique<ProgressGate>(mutex_);
  std::unique_ptr<std::thread> thread_;
};

}  // namespace ngd::comm::mpi
