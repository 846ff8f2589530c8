// SPDX-License-Identifier: Apache-2.0
// Which ranks of a group share a host, and the way of long data over it.
//
// The ranks of a host communicate over shared memory; between hosts each rank communicates with its
// counterparts, the ranks with the same local rank on the other hosts. This needs the same number of
// ranks on every host: such a group is regular. A group that is not regular uses only MPI.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "comm/communicator.hpp"
#include "comm/mpi/host_layer.hpp"
#include "comm/mpi/rank_set.hpp"
#include "comm/mpi/transfer.hpp"

namespace ngd::comm::hierarchical {

// Who the ranks of the family are: the host of each, and, by their numbers in the shared memory of
// my host, those that are here.
struct Roster {
  std::vector<int> host_of;
  std::vector<int> here;
};

// The same of some ranks only; I am one of them.
std::shared_ptr<const Roster> roster_among(const Roster& roster, const mpi::RankSet& group);

// Connect the ranks of `roster.here` over shared memory; this rank is `rank`.
std::unique_ptr<Communicator> make_host_group(const Roster& roster, int rank,
                                              const std::string& key, double timeout_seconds,
                                              const std::function<bool()>& interrupt);

// After a failure, keep shared memory mapped for good if MPI still uses it.
void release_or_keep(std::unique_ptr<Communicator>& local) noexcept;

class Hosts final : public mpi::HostLayer {
 public:
  // local: the ranks of my host, in the order of the group's.
  Hosts(const mpi::RankSet& group, std::shared_ptr<const Roster> roster,
        std::unique_ptr<Communicator> local);

  std::string_view name() const noexcept override { return regular_ ? "hierarchical" : "mpi"; }
  Communicator& local() noexcept override { return *local_; }
  ~Hosts() override;
  void fail(const mpi::Failure& failure) noexcept override;
  std::unique_ptr<mpi::Transfer> make_transfer(int tag, const Collective& collective) override;
  std::optional<std::unique_ptr<Communicator>> try_split_local(int color, int key) override;
  std::unique_ptr<mpi::HostLayer> for_split(const mpi::RankSet& group,
                                            std::unique_ptr<Communicator> local) const override;
  std::unique_ptr<mpi::HostLayer> for_members(const mpi::RankSet& group,
                                              const Rendezvous& rendezvous) const override;
  bool is_local(const mpi::RankSet& group) const override;
  std::unique_ptr<Communicator> take_local(std::shared_ptr<mpi::Family> family) override;
  bool is_here(int world_rank) const noexcept override { return number_here(world_rank) >= 0; }
  int awaited_by(int world_rank) const noexcept override;

  // What follows is for these transfers.
  const mpi::RankSet& counterparts() const noexcept { return counterparts_; }
  int count() const noexcept { return counterparts_.size(); }
  int mine() const noexcept { return counterparts_.rank; }
  int per_host() const noexcept { return local_->size(); }
  int ranks() const noexcept { return count() * per_host(); }
  // The host of a rank of the group, and its place there.
  int host(int rank) const noexcept { return host_[static_cast<std::size_t>(rank)]; }
  int place(int rank) const noexcept { return place_[static_cast<std::size_t>(rank)]; }
  const std::vector<int>& neighbours() const noexcept { return neighbours_; }  // world ranks

  // Every rank of a host must submit the same sequence to its local communicator. A transfer takes
  // a ticket when it begins, which is in the same order on all ranks, and submits in its turn.
  std::uint64_t take_ticket() noexcept { return tickets_++; }
  bool serves(std::uint64_t ticket) const noexcept { return serving_ == ticket; }
  void next_ticket() noexcept { ++serving_; }

  // Submit to the local communicator. Returns nothing, and nothing has happened, while another thread
  // uses it: try again later. A step of a transfer therefore submits first and sends afterwards.
  [[nodiscard]] std::optional<Work> try_submit(const Collective& collective) {
    return local_->try_submit(collective);
  }
  // Return true if the work is known to be done; false also while another thread uses the local
  // communicator.
  [[nodiscard]] bool is_done(Work work) {
    return local_->try_wait(work, WaitLimits::patience(0)) == Progress::Done;
  }
  std::vector<int> missing(Work work) const { return local_->missing(work); }  // world ranks

 private:
  int number_here(int world_rank) const noexcept;  // in shared memory; -1 = on another host

  mpi::RankSet group_;
  std::shared_ptr<const Roster> roster_;
  std::unique_ptr<Communicator> local_;
  std::vector<int> host_;
  std::vector<int> place_;
  std::vector<int> neighbours_;  // world ranks
  mpi::RankSet counterparts_;
  bool regular_ = false;
  bool in_blocks_ = false;  // the ranks of a host follow one another
  std::uint64_t tickets_ = 0;
  std::uint64_t serving_ = 0;
};

// What this process calls its host: NGD_HOST; or where the kernel was booted and the network
// namespace, beyond which its abstract sockets are not seen.
std::string host_name();

}  // namespace ngd::comm::hierarchical
