// SPDX-License-Identifier: Apache-2.0
// A group on one host, split from one on several: shared memory, but whoever waits in it moves the
// works of its whole family.
//
// Whoever submits, waits or splits holds the family's lock, against the progress thread, and gives
// it back while it asks its caller whether to go on. Everything else is shared memory's own affair,
// which guards itself: so another thread can end a wait.
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

  std::string_view name() const noexcept override { return inner_->name(); }
  int rank() const noexcept override { return inner_->rank(); }
  int size() const noexcept override { return inner_->size(); }
  int local_rank() const noexcept override { return inner_->local_rank(); }
  int local_size() const noexcept override { return inner_->local_size(); }

  Work submit(const Collective& collective) override;
  void wait(Work work, double timeout_seconds) override;
  bool done(Work work) override { return wait_for(work, 0); }
  bool wait_for(Work work, double seconds) override;
  std::unique_ptr<Communicator> split(int color, int key) override;
  std::vector<CallStats> stats() const override;
  const std::shared_ptr<Computations>& computations() const noexcept override {
    return inner_->computations();
  }
  SharedBlock allocate(std::size_t bytes) override { return inner_->allocate(bytes); }
  void release(SharedBlock block) noexcept override;
  bool has_common_memory() const noexcept override { return inner_->has_common_memory(); }
  bool is_over() const noexcept override { return inner_->is_over() || family_->failed(); }
  bool in_child() const noexcept override { return mpi::in_forked_child(); }
  std::uint64_t make_common(std::size_t bytes) override { return inner_->make_common(bytes); }
  std::shared_ptr<void> open_common(int maker, std::uint64_t number) override {
    return inner_->open_common(maker, number);
  }
  std::unique_ptr<CopyOnWriteMapping> map_common(int maker, std::uint64_t number,
                                                 std::size_t bytes) override {
    return inner_->map_common(maker, number, bytes);
  }
  void watch(bool on) noexcept override;
  void abort(std::string_view traceback) noexcept override;
  void close() noexcept override;

 private:
  struct Submitted {
    Work work;
    CallRecord call;  // for messages
  };

  bool progress() noexcept override;
  void move_works();
  void send_failure(const mpi::Failure& failure) noexcept override;
  void drop_works() noexcept override { in_flight_.clear(); }
  void expect_no_failure(const CallRecord& mine) override;
  void look_at_others();
  std::uint64_t moves() const noexcept override { return done_; }
  bool await(Work work, double seconds);
  template <class Call>
  auto locked(const char* name, Call&& call);
  template <class Call>
  auto wait_inside(const char* name, Call&& call);
  bool ask();
  void report(const FailureView& failure, const char* call);

  const std::shared_ptr<mpi::Family> family_;
  std::unique_ptr<Communicator> inner_;
  std::vector<Submitted> in_flight_;
  Work waited_;
  std::uint64_t done_ = 0;
  std::exception_ptr failure_elsewhere_;          // found by ask(), in another group
  std::unique_lock<std::mutex>* held_ = nullptr;  // by the call that is inside
};

}  // namespace ngd::comm::hierarchical
