// SPDX-License-Identifier: Apache-2.0
// Collectives over MPI's nonblocking point-to-point messages.
//
// Every collective begins with an exchange of headers, all to all: no data move before all ranks
// are known to be in the same collective. The data of a small collective travel with the headers.
// The headers are sent at submit; after that, any call that makes progress moves the data. MPI's
// own collectives are not used, because they report no error when a connection is cut.
//
// The parts: headers.hpp compares the headers, peer_reports.hpp holds the reports of peers that
// have ended, works.hpp advances the submitted works, choose.hpp chooses the transfers,
// long_wait.hpp finds late ranks, teardown.hpp ends the group, groups.hpp makes new groups.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/mpi/group_context.hpp"
#include "comm/mpi/headers.hpp"
#include "comm/mpi/peer_reports.hpp"
#include "comm/mpi/teardown.hpp"
#include "comm/mpi/works.hpp"

namespace ngd::comm::mpi {

class MpiCommunicator final : public Communicator, private Member {
 public:
  // Make a group of all ranks of an MPI communicator, or only of `ranks`. `family` is the object
  // that all groups on that communicator share.
  explicit MpiCommunicator(std::shared_ptr<Family> family);
  MpiCommunicator(std::shared_ptr<Family> family, RankSet ranks);
  ~MpiCommunicator() override { close(); }

  // Set the host layer, which moves data in shared memory inside each host; null: use only MPI. All
  // later collectives use it. All ranks must call this at the same position in their sequence of
  // collectives.
  void use(std::unique_ptr<HostLayer> hosts);

  // The next three functions are for groups.hpp. check_not_child() throws GroupClosed in a forked
  // child. first_incomplete() returns the sequence number of the first collective that is not
  // complete.
  const GroupContext& context() const noexcept { return group_; }
  void check_not_child(const char* call) const;
  std::uint64_t first_incomplete() const;

  std::optional<Work> try_submit(const Collective& collective) override;
  Progress try_wait(Work work, const WaitLimits& limits) override;
  std::optional<std::unique_ptr<Communicator>> try_split(int color, int key) override;
  std::vector<CallStats> stats() const override;
  SharedBlock allocate(std::size_t bytes) override;
  void release(SharedBlock block) noexcept override;
  bool is_over() const noexcept override {
    return in_child() || group_.state != GroupContext::State::Open;
  }
  bool in_child() const noexcept override { return in_forked_child(); }
  void give_up(ErrorKind kind, std::string_view why, std::span<const int> ranks) noexcept override;
  void close() noexcept override;

 private:
  using State = GroupContext::State;

  void throw_interrupted(Work work);
  void check_other_groups(Work work);

  bool progress() noexcept override;
  // Fail the world group and all groups made from it with the MPI error `lost`. The text of the
  // failure also names the first incomplete collective of this group, if there is one.
  void fail_unreachable(const Unreachable& lost) noexcept;
  std::uint64_t moves() const noexcept override { return works_.moves(); }
  void send_failure(const Failure& failure) noexcept override;
  bool has_sent_failure() override;
  bool moves_data() const noexcept override { return works_.moves_data(); }
  void drop_works() noexcept override { works_.drop(); }
  void expect_no_failure(const CallRecord& mine) override;

  GroupContext group_;
  Headers headers_;
  const PeerReports reports_;
  Works works_;
  Teardown teardown_;
};

}  // namespace ngd::comm::mpi
