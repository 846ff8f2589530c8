// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/groups.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <mutex>
#include <tuple>
#include <utility>

#include "base/config.hpp"
#include "base/error.hpp"
#include "comm/retry.hpp"

namespace ngd::comm {
namespace mpi {
namespace {

// Return `world` as a group over MPI. Any other group is an internal error.
MpiCommunicator& over_mpi(Communicator& world) {
  auto* mpi_group = dynamic_cast<MpiCommunicator*>(&world);
  check(mpi_group != nullptr, "a group of members of ", world.name(), ", which is not over MPI");
  return *mpi_group;
}

// Return the first message tag of group `number`. Throws Init if MPI has no tags for it.
int first_tag(const Family& family, int number) {
  if (number >= family.tag_limit() / kTagsPerGroup)
    fail(ErrorKind::Init, "split: expected at most ", family.tag_limit() / kTagsPerGroup,
         " groups per world; this MPI has no message tags for more. Make groups once, outside of "
         "loops");
  return number * kTagsPerGroup;
}

// ---- split

// The data that each rank sends in a split: its color, its key, and the number that it proposes for
// the new group (the lowest number above those of all its groups).
using Choice = std::array<std::int64_t, 3>;

// Return an all_gather of `mine` into `choices`, which has one element per rank.
Collective gather_of(const Choice& mine, std::vector<Choice>& choices) {
  Collective gather;
  gather.kind = Kind::AllGather;
  gather.dtype = DType::I64;
  gather.count = mine.size();
  gather.source = mine.data();
  gather.destination = choices.data();
  gather.site = "split()";
  return gather;
}

// Return the number of a new group: the largest number that a rank has proposed in split(). A
// group's number gives its message tags. The groups of one split have no rank in common, so they
// may have the same number.
int take_group_number(Family& family, const std::vector<Choice>& choices) {
  const std::lock_guard lock(family.mutex());
  for (const Choice& choice : choices)
    family.next_group = std::max(family.next_group, static_cast<int>(choice[2]));
  return family.next_group++;
}

// Return the ranks of the new group with this color, ordered by key and then by rank in `parent`.
// The caller sets first_tag.
RankSet child_ranks(const RankSet& parent, int color, const std::vector<Choice>& choices) {
  std::vector<std::tuple<std::int64_t, int>> order;  // (key, rank in the parent)
  for (int r = 0; r < parent.size(); ++r) {
    const Choice& choice = choices[static_cast<std::size_t>(r)];
    if (choice[0] == color) order.emplace_back(choice[1], r);
  }
  std::sort(order.begin(), order.end());
  RankSet ranks{parent.comm, {}, 0, 0};
  for (const auto& [key, r] : order) {
    if (r == parent.rank) ranks.rank = ranks.size();
    ranks.members.push_back(parent.world(r));
  }
  return ranks;
}

// Take part in the split of the host group (the ranks of this host). All its ranks must call the
// split at the same position in the sequence of collectives of the host group. But a pending
// collective of `parent` may submit collectives to the host group at any time. So each rank first
// waits for all collectives of `parent` that it submitted before `last`, the one that gathered the
// arguments of split(). Then the ranks of `parent` run a barrier. After it, none of these
// collectives is pending on any rank.
std::unique_ptr<Communicator> split_host_group(MpiCommunicator& parent, int color, int key,
                                               Work last) {
  const double timeout = config::timeout_seconds();
  for (Work each{parent.first_incomplete()}; each.sequence < last.sequence; ++each.sequence)
    wait_retrying(parent, each, timeout);
  Collective barrier;
  barrier.site = "split()";
  wait_retrying(parent, submit_retrying(parent, barrier, timeout), timeout);
  // Retry the split while another thread uses the host group (the ranks of this host). Hold the
  // lock during each try: then no other thread advances a pending collective, which could submit to
  // the host group.
  const GroupContext& group = parent.context();
  const auto split_host = [&] { return group.hosts->try_split_local(color, key); };
  const auto fail_family = [&](const FailureView& failure) {
    if (!group.hosts->local().is_over()) return;
    group.family->fail(failure);
    group.family->mark_thrown();
  };
  return std::move(*retry_while_busy(parent, timeout, [&] {
    const std::lock_guard lock(group.family->mutex());
    group.require_open("split");
    return notify_on_failure(split_host, fail_family);
  }));
}

}  // namespace

std::optional<std::unique_ptr<Communicator>> try_split_group(MpiCommunicator& parent, int color,
                                                             int key) {
  const GroupContext& group = parent.context();
  const Choice mine{color, key, next_group(parent)};
  std::vector<Choice> choices(static_cast<std::size_t>(group.size()));
  const std::optional<Work> gathered = parent.try_submit(gather_of(mine, choices));
  if (!gathered) return std::nullopt;
  wait_retrying(parent, *gathered, config::timeout_seconds());
  const int number = take_group_number(*group.family, choices);
  std::unique_ptr<Communicator> local;
  if (group.hosts) local = split_host_group(parent, color, key, *gathered);
  if (color < 0) return nullptr;
  RankSet ranks = child_ranks(group.ranks, color, choices);
  ranks.first_tag = first_tag(*group.family, number);
  std::unique_ptr<HostLayer> hosts;
  if (local) hosts = group.hosts->for_split(ranks, std::move(local));
  if (hosts && hosts->local().size() == ranks.size()) return hosts->take_local(group.family);
  auto child = std::make_unique<MpiCommunicator>(group.family, std::move(ranks));
  child->use(std::move(hosts));
  return child;
}

// ---- a group that only its ranks make

int next_group(const MpiCommunicator& world) {
  world.check_not_child("split");
  const std::lock_guard lock(world.context().family->mutex());
  return world.context().family->next_group;
}

// Each member has proposed a number above those of all its groups. `number` is the largest of these
// proposals, so no member has another group with this number. A group of other ranks may have the
// same number. If a message arrives before its receiver has made the group, MPI holds the message
// until then.
std::unique_ptr<Communicator> make_group(MpiCommunicator& world, const std::vector<int>& members,
                                         int number, const HostLayer::Rendezvous& rendezvous) {
  world.check_not_child("split");
  const GroupContext& parent = world.context();
  {
    const std::lock_guard lock(parent.family->mutex());
    parent.require_open("split");
    check(number >= parent.family->next_group, "a group's number ", number,
          ", which this rank has already used");
    parent.family->next_group = number + 1;
  }
  RankSet ranks{parent.ranks.comm, {}, -1, first_tag(*parent.family, number)};
  for (const int member : members) {
    if (member == parent.rank()) ranks.rank = ranks.size();
    ranks.members.push_back(parent.world(member));
  }
  check(ranks.rank >= 0, "a new group without the rank that makes it");
  if (parent.hosts && parent.hosts->is_local(ranks))
    return parent.hosts->for_members(ranks, rendezvous)->take_local(parent.family);
  auto group = std::make_unique<MpiCommunicator>(parent.family, ranks);
  group->set_interrupt(rendezvous.interrupt);
  or_abort(*group, [&] {
    if (parent.hosts) group->use(parent.hosts->for_members(ranks, rendezvous));
  });
  Collective barrier;
  barrier.site = "new_group()";
  group->wait(group->submit(barrier), rendezvous.timeout_seconds);
  return group;
}

// ---- the world

// A rank that fails after open_endpoint() cannot notify its peers, because it has not made its
// group. Its process then calls MPI_Abort at exit, which ends the peers.
std::unique_ptr<MpiCommunicator> open_world(int fortran_handle, double timeout_seconds) {
  const Endpoint endpoint = open_endpoint(fortran_handle, timeout_seconds);
  try {
    return std::make_unique<MpiCommunicator>(std::make_shared<Family>(endpoint));
  } catch (const Error&) {  // all ranks throw the same error
    throw;
  } catch (const std::exception&) {
    mark_failed();
    throw;
  }
}

}  // namespace mpi

std::unique_ptr<Communicator> make_mpi_communicator(int fortran_handle, double timeout_seconds) {
  return mpi::open_world(fortran_handle, timeout_seconds);
}

std::unique_ptr<Communicator> make_group_of(Communicator& world, const std::vector<int>& members,
                                            int number, const std::string& key,
                                            double timeout_seconds,
                                            const std::function<bool()>& interrupt) {
  return mpi::make_group(mpi::over_mpi(world), members, number, {key, timeout_seconds, interrupt});
}

int next_group_number(Communicator& world) { return mpi::next_group(mpi::over_mpi(world)); }

}  // namespace ngd::comm
