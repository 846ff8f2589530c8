// SPDX-License-Identifier: Apache-2.0
#include "comm/hierarchical/hosts.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <map>

#include "base/config.hpp"
#include "comm/hierarchical/local_group.hpp"
#include "comm/hierarchical/transfers.hpp"
#include "comm/mpi/process.hpp"

namespace ngd::comm::hierarchical {

void release_or_keep(std::unique_ptr<Communicator>& local) noexcept {
  if (!local || !mpi::left_to_mpi()) return;
  local->close();
  mpi::keep_for_good(local.release());
}

std::string host_name() {
  const std::string from_environment = config::text("NGD_HOST", "");
  if (!from_environment.empty()) return from_environment;
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  struct stat network{};
  ::stat("/proc/self/ns/net", &network);
  return concat(boot, ":", network.st_ino);
}

Hosts::Hosts(const mpi::RankSet& group, std::shared_ptr<const Roster> roster,
             std::unique_ptr<Communicator> local)
    : group_(group), roster_(std::move(roster)), local_(std::move(local)) {
  std::map<int, int> numbers;  // number of a host in roster_ -> its number in this group
  // Element h: the ranks on host h. The hosts of this group are numbered from 0.
  std::vector<std::vector<int>> ranks_on;
  for (int r = 0; r < group.size(); ++r) {
    const int family_number = roster_->host_of[static_cast<std::size_t>(group.world(r))];
    const auto [at, is_new] = numbers.emplace(family_number, static_cast<int>(ranks_on.size()));
    if (is_new) ranks_on.emplace_back();
    std::vector<int>& host_ranks = ranks_on[static_cast<std::size_t>(at->second)];
    host_.push_back(at->second);
    place_.push_back(static_cast<int>(host_ranks.size()));
    host_ranks.push_back(r);
  }
  const int me = group.rank;
  const auto my_place = static_cast<std::size_t>(place(me));
  const std::vector<int>& my_host_ranks = ranks_on[static_cast<std::size_t>(host(me))];
  const std::size_t per_host = my_host_ranks.size();
  for (int r : my_host_ranks)
    if (r != me) neighbours_.push_back(group.world(r));
  check(static_cast<int>(per_host) == local_->size() && place(me) == local_->rank(), "a host of ",
        per_host, " ranks, of which ", local_->size(), " share memory");
  is_regular_ = ranks_on.size() > 1 && per_host > 1 &&
                std::all_of(ranks_on.begin(), ranks_on.end(),
                            [&](const std::vector<int>& r) { return r.size() == per_host; });
  if (!is_regular_) return;
  has_consecutive_ranks_ = std::is_sorted(host_.begin(), host_.end());
  counterparts_ = {group.comm, {}, host(me), group.first_tag};
  for (const std::vector<int>& ranks : ranks_on)
    counterparts_.members.push_back(group.world(ranks[my_place]));
}

Hosts::~Hosts() { release_or_keep(local_); }

void Hosts::fail(const mpi::Failure& failure) noexcept {
  local_->give_up(failure.kind, failure.text, failure.ranks);
}

std::optional<std::unique_ptr<Communicator>> Hosts::try_split_local(int color, int key) {
  return local_->try_split(color, key);
}

std::unique_ptr<mpi::HostLayer> Hosts::for_split(const mpi::RankSet& group,
                                                 std::unique_ptr<Communicator> local) const {
  return std::make_unique<Hosts>(group, roster_, std::move(local));
}

std::unique_ptr<mpi::HostLayer> Hosts::for_members(const mpi::RankSet& group,
                                                   const Rendezvous& rendezvous) const {
  const auto roster = roster_among(*roster_, group);
  return std::make_unique<Hosts>(group, roster,
                                 make_host_group(*roster, group.world(group.rank), rendezvous.key,
                                                 rendezvous.timeout_seconds, rendezvous.interrupt));
}

bool Hosts::is_local(const mpi::RankSet& group) const {
  return static_cast<int>(roster_among(*roster_, group)->here.size()) == group.size();
}

std::unique_ptr<Communicator> Hosts::take_local(std::shared_ptr<mpi::Family> family) {
  return std::make_unique<LocalGroup>(std::move(family), std::move(local_));
}

std::unique_ptr<mpi::Transfer> Hosts::make_transfer(int tag, const Collective& collective) {
  if (!is_regular_) return nullptr;
  switch (collective.kind) {
    case Kind::AllReduce:
      if (collective.algorithm == Algorithm::Ring) return nullptr;
      return make_all_reduce(*this, tag, collective);
    case Kind::Broadcast:
      return make_broadcast(*this, tag, collective);
    case Kind::ReduceScatter:
      // 16-bit floats use only MPI. The transfer that also uses shared memory would store and send
      // their partial sums as float32, which has twice as many bytes.
      if (!has_consecutive_ranks_ || is_half(collective.dtype)) return nullptr;
      return make_reduce_scatter(*this, tag, collective);
    case Kind::AllGather:
      if (!has_consecutive_ranks_) return nullptr;
      return make_all_gather(*this, tag, collective);
    default:
      return nullptr;
  }
}

int Hosts::number_here(int world_rank) const noexcept {
  for (int r = 0, number = 0; r < group_.size(); ++r) {
    if (host(r) != host(group_.rank)) continue;
    if (group_.world(r) == world_rank) return number;
    ++number;
  }
  return -1;
}

int Hosts::awaited_by(int world_rank) const noexcept {
  const int number = number_here(world_rank);
  return number < 0 ? -1 : local_->awaited_by(number);
}

}  // namespace ngd::comm::hierarchical
