// SPDX-License-Identifier: Apache-2.0
// A group and all that were split from it: one MPI communicator, one lock, one progress thread.
//
// MPI moves data only while it is called. Whoever waits in one group of the family moves the works
// of all. While nobody waits and works are in flight, the progress thread does; it naps whenever
// nothing moves, rests while a caller waits, and stays off the cores of the kernels' threads where
// these are known (docs/adr/0015).
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/mpi/process.hpp"
#include "comm/mpi/progress_gate.hpp"
#include "comm/mpi/wire.hpp"

namespace ngd::comm::mpi {

class Member {
 public:
  virtual ~Member() = default;
  // Moves what can be moved, and keeps what goes wrong for the next call. True while works are in
  // flight.
  virtual bool progress() noexcept = 0;
  // Grows whenever something has moved.
  virtual std::uint64_t moves() const noexcept = 0;
  // Of a group that is watched: throws what a rank has said of its failure; `mine` is the collective
  // in which this rank waits elsewhere.
  virtual void expect_no_failure(const Header& mine) { static_cast<void>(mine); }
};

class Family {
 public:
  explicit Family(const Endpoint& endpoint);
  ~Family();
  Family(const Family&) = delete;
  Family& operator=(const Family&) = delete;

  const Endpoint& endpoint() const noexcept { return endpoint_; }
  // Guards all groups of the family, and every call of MPI on its communicator.
  std::mutex& mutex() noexcept { return mutex_; }

  // With the lock held:
  void add(Member& member) {
    busy_.reserve(members_.size() + 1);  // progress() must not ask for memory
    members_.push_back(&member);
  }
  void remove(Member& member) noexcept { std::erase(members_, &member); }
  void progress() noexcept;
  bool in_flight_beside(const Member& member) const noexcept;
  void expect_no_failure_beside(const Member& member, const Header& mine);
  // A work has begun that must be moved again and again.
  void submitted() noexcept {
    gate_->set_in_flight(true);
    gate_->wake_thread();
  }
  void abandon() noexcept { clean_ = false; }  // MPI holds messages: the communicator stays
  int next_group = 1;                          // the first number that no group of mine has
  int tag_limit() const noexcept { return tag_limit_; }

  // Without the lock, around a wait: the progress thread rests.
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
  void run();
  void touch_thread_locals() const noexcept;
  void pump() const noexcept;
  std::uint64_t moves() const noexcept;

  const Endpoint endpoint_;
  int tag_limit_ = 32767;
  bool clean_ = true;
  std::mutex mutex_;
  std::vector<Member*> members_;
  std::vector<Member*> busy_;  // those with works in flight, when they were last asked
  // A forked child destroys neither: the thread does not exist there, and the destructor of a
  // condition variable would wait for it.
  std::unique_ptr<ProgressGate> gate_ = std::make_unique<ProgressGate>(mutex_);
  std::unique_ptr<std::thread> thread_;
};

}  // namespace ngd::comm::mpi
