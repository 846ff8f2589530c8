// SPDX-License-Identifier: Apache-2.0
// The hosts of a group: the ranks of each host, and the transfers between them.
//
// The ranks of a host communicate over shared memory. Between hosts, each rank communicates with
// its counterparts: the ranks with the same local rank on the other hosts. This needs several
// hosts that all have the same number of ranks, at least two. Such a group is regular. A group that
// is not regular uses only MPI.
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

// The hosts of all ranks, and the ranks of one group that are on this host. These ranks also form a
// smaller group, over shared memory. host_of[r]: the number of the host of world rank r. here[i]:
// the world rank of rank i of the smaller group.
struct Roster {
  std::vector<int> host_of;
  std::vector<int> here;
};

// Return a copy of `roster`, in which `here` has only the ranks of `group` on this host, in the
// order of the group. `host_of` is the same. This rank must be in `group`.
std::shared_ptr<const Roster> roster_among(const Roster& roster, const mpi::RankSet& group);

// Return the group of the ranks of `roster.here`, connected over shared memory. `rank` is the world
// rank of this process.
std::unique_ptr<Communicator> make_host_group(const Roster& roster, int rank,
                                              const std::string& key, double timeout_seconds,
                                              const std::function<bool()>& interrupt);

// `local` is the group of the ranks of this host, over shared memory. If MPI may still use that
// memory after a failure, this function closes the group, sets `local` to null and never destroys
// the group, so its memory stays mapped until the process ends. In all other cases, this function
// does nothing.
void release_or_keep(std::unique_ptr<Communicator>& local) noexcept;

class Hosts final : public mpi::HostLayer {
 public:
  // `local`: the group of the ranks of this host, in the order of their ranks in `group`.
  Hosts(const mpi::RankSet& group, std::shared_ptr<const Roster> roster,
        std::unique_ptr<Communicator> local);

  std::string_view name() const noexcept override { return is_regular_ ? "hierarchical" : "mpi"; }
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

  // All public functions below, except host(), place() and neighbours(), need a regular group:
  // several hosts that all have the same number of ranks, at least two. counterparts() returns the
  // ranks with the same local rank as this rank, one per host. count() returns the number of hosts,
  // and mine() the number of this host. Hosts are numbered from 0, in the order of their lowest
  // ranks in the group. per_host() returns the number of ranks on each host, and ranks() the number
  // of ranks in the group.
  const mpi::RankSet& counterparts() const noexcept { return counterparts_; }
  int count() const noexcept { return counterparts_.size(); }
  int mine() const noexcept { return counterparts_.rank; }
  int per_host() const noexcept { return local_->size(); }
  int ranks() const noexcept { return count() * per_host(); }
  // host() returns the number of the host of a rank of the group. place() returns the index of that
  // rank among the group's ranks on its host.
  int host(int rank) const noexcept { return host_[static_cast<std::size_t>(rank)]; }
  int place(int rank) const noexcept { return place_[static_cast<std::size_t>(rank)]; }
  // Return the other ranks of this group on this host, as world ranks.
  const std::vector<int>& neighbours() const noexcept { return neighbours_; }

  // All ranks of a host must submit the same sequence of collectives to local(), their group over
  // shared memory. So each transfer takes a ticket (a number that counts up) when it begins, and
  // submits only while serves(ticket) is true. After its last submission, the transfer calls
  // next_ticket(), and the next transfer may submit. Transfers begin in the same order on all
  // ranks, so equal tickets mean the same transfer.
  std::uint64_t take_ticket() noexcept { return tickets_++; }
  bool serves(std::uint64_t ticket) const noexcept { return serving_ == ticket; }
  void next_ticket() noexcept { ++serving_; }

  // Submit a collective to the group of the ranks of this host. If another thread uses that group,
  // return nothing and have no effect: the caller tries again later. A caller that also sends
  // messages must send them after the submission, because otherwise each try would send them again.
  [[nodiscard]] std::optional<Work> try_submit(const Collective& collective) {
    return local_->try_submit(collective);
  }
  // Return true if `work`, which try_submit() has returned, is complete. Return false if it is not
  // complete, or if another thread uses the group of the ranks of this host: this thread then
  // cannot read the state of the work.
  [[nodiscard]] bool is_done(Work work) {
    return local_->try_wait(work, WaitLimits::patience(0)) == Progress::Done;
  }
  // Return the ranks for which the collective `work`, which try_submit() has returned, still waits.
  // They are world ranks.
  std::vector<int> missing(Work work) const { return local_->missing(work); }

 private:
  // Return the rank of `world_rank` in the group of the ranks of this host, or -1 if it is not in
  // that group.
  int number_here(int world_rank) const noexcept;

  mpi::RankSet group_;
  std::shared_ptr<const Roster> roster_;
  std::unique_ptr<Communicator> local_;
  std::vector<int> host_;
  std::vector<int> place_;
  std::vector<int> neighbours_;  // the world ranks of the other ranks on this host
  mpi::RankSet counterparts_;
  bool is_regular_ = false;
  bool has_consecutive_ranks_ = false;  // the ranks on each host are consecutive
  std::uint64_t tickets_ = 0;
  std::uint64_t serving_ = 0;
};

// Return the name of this host: NGD_HOST, or else the boot id of the kernel and the network
// namespace. The namespace is part of it because abstract sockets are visible only in their own
// namespace.
std::string host_name();

}  // namespace ngd::comm::hierarchical
