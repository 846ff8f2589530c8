// SPDX-License-Identifier: Apache-2.0
#include "comm/hierarchical/hosts.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <map>
#include <new>

#include "base/config.hpp"
#include "comm/hierarchical/local_group.hpp"
#include "comm/hierarchical/transfers.hpp"
#include "comm/mpi/process.hpp"

namespace ngd::comm::hierarchical {

namespace {

constexpr char kElsewhere = '\x1f';  // before the number of a rank of another host

// Replaces each number behind "rank ", and a mark before it, by what `name` makes of them.
template <class Name>
std::string replace_ranks(std::string_view text, Name&& name) {
  static constexpr std::string_view kWord = "rank ";
  std::string result;
  std::size_t from = 0;
  for (std::size_t at = 0; (at = text.find(kWord, from)) != std::string_view::npos;) {
    std::size_t end = at + kWord.size();
    result.append(text, from, end - from);
    const bool marked = end < text.size() && text[end] == kElsewhere;
    from = end += marked;
    std::size_t number = 0;
    while (end < text.size() && std::isdigit(static_cast<unsigned char>(text[end])) != 0)
      number = number * 10 + static_cast<std::size_t>(text[end++] - '0');
    if (end > from) result += name(number, marked);
    from = end;
  }
  return result.append(text, from);
}

}  // namespace

std::string renumbered(std::string_view text, const Roster& roster) {
  std::string result = replace_ranks(text, [&](std::size_t number, bool marked) {
    const bool here = !marked && number < roster.here.size();
    return here ? std::to_string(roster.here[number]) : std::to_string(number);
  });
  std::erase(result, kElsewhere);  // of a text that was cut behind one
  return result;
}

std::string numbered_here(std::string_view text, const Roster& roster) {
  return replace_ranks(text, [&](std::size_t number, bool) {
    const auto rank = std::find_if(roster.here.begin(), roster.here.end(), [&](int each) {
      return static_cast<std::size_t>(each) == number;
    });
    return rank == roster.here.end() ? kElsewhere + std::to_string(number)
                                     : std::to_string(rank - roster.here.begin());
  });
}

int world_rank(int number, const Roster& roster) noexcept {
  const auto here = static_cast<int>(roster.here.size());
  return number < here ? roster.here[static_cast<std::size_t>(number)] : number - here;
}

int number_here(int world_rank, const Roster& roster) noexcept {
  const auto at = std::find(roster.here.begin(), roster.here.end(), world_rank);
  return static_cast<int>(at - roster.here.begin()) + (at == roster.here.end() ? world_rank : 0);
}

void fail_on_host(Communicator& local, const mpi::Failure& failure, const Roster& roster) noexcept {
  try {
    std::vector<int> ranks = failure.ranks;
    for (int& rank : ranks) rank = number_here(rank, roster);
    local.give_up(failure.kind, numbered_here(failure.text, roster), ranks);
  } catch (const std::bad_alloc&) {
    local.abort(failure.text);
  }
}

void release_or_keep(std::unique_ptr<Communicator>& local) noexcept {
  if (!local || !mpi::left_to_mpi()) return;
  local->close();
  mpi::keep_for_good(local.release());
}

std::string host_name() {
  const std::string given = config::text("NGD_HOST", "");
  if (!given.empty()) return given;
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  struct stat network{};
  ::stat("/proc/self/ns/net", &network);
  return concat(boot, ":", network.st_ino);
}

Hosts::Hosts(const mpi::RankSet& group, std::shared_ptr<const Roster> roster,
             std::unique_ptr<Communicator> local)
    : group_(group), roster_(std::move(roster)), local_(std::move(local)) {
  std::map<int, int> numbers;              // by the family's number of a host: the group's
  std::vector<std::vector<int>> ranks_on;  // by the group's number
  for (int r = 0; r < group.size(); ++r) {
    const int family_number = roster_->host_of[static_cast<std::size_t>(group.world(r))];
    const auto [at, fresh] = numbers.emplace(family_number, static_cast<int>(ranks_on.size()));
    if (fresh) ranks_on.emplace_back();
    std::vector<int>& there = ranks_on[static_cast<std::size_t>(at->second)];
    host_.push_back(at->second);
    place_.push_back(static_cast<int>(there.size()));
    there.push_back(r);
  }
  const int me = group.rank;
  const auto my_place = static_cast<std::size_t>(place(me));
  const std::vector<int>& here = ranks_on[static_cast<std::size_t>(host(me))];
  const std::size_t per_host = here.size();
  for (int r : here)
    if (r != me) neighbours_.push_back(group.world(r));
  check(static_cast<int>(per_host) == local_->size() && place(me) == local_->rank(), "a host of ",
        per_host, " ranks, of which ", local_->size(), " share memory");
  regular_ = ranks_on.size() > 1 && per_host > 1 &&
             std::all_of(ranks_on.begin(), ranks_on.end(),
                         [&](const std::vector<int>& r) { return r.size() == per_host; });
  if (!regular_) return;
  in_blocks_ = std::is_sorted(host_.begin(), host_.end());
  counterparts_ = {group.comm, {}, host(me), group.first_tag};
  for (const std::vector<int>& ranks : ranks_on)
    counterparts_.members.push_back(group.world(ranks[my_place]));
}

Hosts::~Hosts() { release_or_keep(local_); }

void Hosts::fail(const mpi::Failure& failure) noexcept { fail_on_host(*local_, failure, *roster_); }

std::unique_ptr<Communicator> Hosts::split_local(int color, int key) {
  return with_world_ranks(*roster_, [&] { return local_->split(color, key); });
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
  return std::make_unique<LocalGroup>(std::move(family), roster_, std::move(local_));
}

std::unique_ptr<mpi::Transfer> Hosts::make_transfer(int tag, const Collective& collective) {
  if (!regular_) return nullptr;
  switch (collective.kind) {
    case Kind::AllReduce:
      if (collective.algorithm == Algorithm::Ring) return nullptr;
      return make_all_reduce(*this, tag, collective);
    case Kind::Broadcast:
      return make_broadcast(*this, tag, collective);
    case Kind::ReduceScatter:
      // Its partial sums would be float32, and twice the data staged.
      if (!in_blocks_ || is_half(collective.dtype)) return nullptr;
      return make_reduce_scatter(*this, tag, collective);
    case Kind::AllGather:
      if (!in_blocks_) return nullptr;
      return make_all_gather(*this, tag, collective);
    default:
      return nullptr;
  }
}

std::optional<Work> Hosts::try_submit(const Collective& collective) {
  try {
    return with_world_ranks(*roster_, [&] { return local_->submit(collective); });
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::Busy) throw;
    return std::nullopt;
  }
}

bool Hosts::done(Work work) {
  try {
    return with_world_ranks(*roster_, [&] { return local_->done(work); });
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::Busy) throw;
    return false;
  }
}

std::vector<int> Hosts::missing(Work work) const {
  std::vector<int> ranks = local_->missing(work);
  for (int& rank : ranks) rank = roster_->here.at(static_cast<std::size_t>(rank));
  return ranks;
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
