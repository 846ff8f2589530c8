// SPDX-License-Identifier: Apache-2.0
// A group whose ranks are all on one host, and that was split from a group on several hosts. It is
// a group over shared memory, the inner group, with one addition. A group and all groups that were
// split from it are a family, with one lock. A thread that waits in a LocalGroup advances the works
// (pending collectives, sends and receives) of all groups of its family.
//
// A call that submits, waits or splits holds the lock of the family, because the progress thread
// also advances works. It releases the lock while it calls the interrupt callback. All other calls
// use the inner group without the lock, because the inner group protects itself. So another thread
// can end a wait: it calls close(), which closes the inner group without the lock.
#pragma once

#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/identity.hpp"
#include "comm/mpi/family.hpp"

namespace ngd::comm::hierarchical {

class LocalGroup final : public Communicator, private mpi::Member {
 public:
  LocalGroup(std::shared_ptr<mpi::Family> family, std::unique_ptr<Communicator> inner);
  ~LocalGroup() override;

  std::optional<Work> try_submit(const Collective& collective) override;
  Progress try_wait(Work work, const WaitLimits& limits) override;
  std::optional<std::unique_ptr<Communicator>> try_split(int color, int key) override;
  std::vector<CallStats> stats() const override;
  SharedBlock allocate(std::size_t bytes) override { return inner_->allocate(bytes); }
  void release(SharedBlock block) noexcept override;
  CommonMemory* common_memory() noexcept override { return inner_->common_memory(); }
  bool is_over() const noexcept override { return inner_->is_over() || family_->failed(); }
  bool in_child() const noexcept override { return mpi::in_forked_child(); }
  void watch(bool is_on) noexcept override;
  void give_up(ErrorKind kind, std::string_view why, std::span<const int> ranks) noexcept override;
  void close() noexcept override;

 private:
  struct Submitted {
    Work work;
    CallRecord call;  // for error messages
  };

  bool progress() noexcept override;
  bool move_works();
  void send_failure(const mpi::Failure& failure) noexcept override;
  void drop_works() noexcept override { in_flight_.clear(); }
  void expect_no_failure(const CallRecord& mine) override;
  void check_other_groups();
  std::uint64_t moves() const noexcept override { return num_done_; }
  Progress await(Work work, double seconds);
  // Hold the mutex of family_ (all groups that use the same MPI communicator) while call() runs,
  // and return the result of call(). If family_ has failed, throw its failure and do not run
  // call(). If call() throws, pass the error to report(). `name` is the name of the call for error
  // messages.
  template <class Call>
  auto locked(const char* name, Call&& call);
  template <class Call>
  auto wait_inside(const char* name, Call&& call);
  bool should_end_wait();
  void report(const FailureView& failure, const char* call);

  const std::shared_ptr<mpi::Family> family_;
  std::unique_ptr<Communicator> inner_;
  std::vector<Submitted> in_flight_;
  Work awaited_work_;
  std::uint64_t num_done_ = 0;
  // The failure of another group because of which should_end_wait() has ended a wait of this group;
  // null: none.
  std::exception_ptr failure_elsewhere_;
  // The lock of the mutex of family_ (all groups that use the same MPI communicator). locked()
  // holds it during a call. should_end_wait() releases it while it calls the interrupt callback.
  std::unique_lock<std::mutex>* active_lock_ = nullptr;
};

}  // namespace ngd::comm::hierarchical
