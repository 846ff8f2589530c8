// SPDX-License-Identifier: Apache-2.0
// The rendezvous of a job on several hosts. The ranks exchange the names of their hosts, in an
// all_gather over MPI. Then the ranks of each host connect to each other over shared memory
// (shm/bootstrap.hpp), with a key that rank 0 has drawn at random.
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <string>

#include "comm/communicator.hpp"
#include "comm/hierarchical/hosts.hpp"
#include "comm/mpi/groups.hpp"

namespace ngd::comm {
namespace hierarchical {
namespace {

// The data that each rank sends to all ranks in the rendezvous.
struct HostInfo {
  std::uint32_t random[4];  // those of rank 0 make a key that no other job has
  char host[240];
};

// Return the HostInfo of every rank, by world rank. All ranks call this. Throws Init if NGD_HOST is
// too long.
std::vector<HostInfo> exchange_host_infos(Communicator& world, double timeout_seconds) {
  HostInfo mine{};
  check(::getrandom(mine.random, sizeof(mine.random), 0) == sizeof(mine.random),
        "the system does not return random numbers");
  const std::string host = host_name();
  if (host.size() >= sizeof(mine.host))
    fail(ErrorKind::Init, "NGD_HOST: expected at most ", sizeof(mine.host) - 1, " characters; got ",
         host.size());
  std::memcpy(mine.host, host.data(), host.size());
  std::vector<HostInfo> infos(static_cast<std::size_t>(world.size()));
  Collective gather;
  gather.kind = Kind::AllGather;
  gather.count = sizeof(HostInfo);
  gather.source = &mine;
  gather.destination = infos.data();
  gather.site = "ngd.init()";
  world.wait(world.submit(gather), timeout_seconds);
  return infos;
}

// Return the roster of rank `rank`: the host of every rank, and the world ranks on the host of
// `rank`. infos[r] belongs to world rank r.
Roster roster_of(const std::vector<HostInfo>& infos, int rank) {
  std::map<std::string, int> numbers;  // name -> number of a host; rank 0 is on host 0
  Roster roster;
  for (const HostInfo& info : infos)
    roster.host_of.push_back(
        numbers.emplace(info.host, static_cast<int>(numbers.size())).first->second);
  for (int r = 0; r < static_cast<int>(infos.size()); ++r) {
    const auto host = [&](int each) { return roster.host_of[static_cast<std::size_t>(each)]; };
    if (host(r) == host(rank)) roster.here.push_back(r);
  }
  return roster;
}

// Return the key of the job, made from the random numbers of rank 0.
std::string key_of(const std::vector<HostInfo>& infos) {
  std::string key = "hosts:";
  for (std::uint32_t word : infos.front().random) key += concat(std::hex, word, ".");
  return key;
}

}  // namespace

std::shared_ptr<const Roster> roster_among(const Roster& roster, const mpi::RankSet& group) {
  const auto host = [&](int r) { return roster.host_of[static_cast<std::size_t>(group.world(r))]; };
  auto result = std::make_shared<Roster>();
  result->host_of = roster.host_of;
  for (int r = 0; r < group.size(); ++r)
    if (host(r) == host(group.rank)) result->here.push_back(group.world(r));
  return result;
}

std::unique_ptr<Communicator> make_host_group(const Roster& roster, int rank,
                                              const std::string& key, double timeout_seconds,
                                              const std::function<bool()>& interrupt) {
  const auto me = std::find(roster.here.begin(), roster.here.end(), rank);
  const auto local_rank = static_cast<int>(me - roster.here.begin());
  const auto local_size = static_cast<int>(roster.here.size());
  if (local_size == 1) return make_self_communicator();
  const std::string host_key = concat(key, roster.host_of[static_cast<std::size_t>(rank)]);
  return make_shm_communicator(host_key, local_rank, local_size, timeout_seconds, interrupt,
                               roster.here);
}

}  // namespace hierarchical

std::unique_ptr<Communicator> make_hierarchical_communicator(
    int fortran_handle, double timeout_seconds, const std::function<bool()>& interrupt) {
  auto world = mpi::open_world(fortran_handle, timeout_seconds);
  world->set_interrupt(interrupt);
  std::unique_ptr<Communicator> local;
  std::unique_ptr<hierarchical::Hosts> hosts;
  const auto rendezvous = [&] {
    const auto infos = hierarchical::exchange_host_infos(*world, timeout_seconds);
    const auto roster =
        std::make_shared<const hierarchical::Roster>(hierarchical::roster_of(infos, world->rank()));
    local = hierarchical::make_host_group(*roster, world->rank(), hierarchical::key_of(infos),
                                          timeout_seconds, interrupt);
    if (local->size() < world->size())
      hosts =
          std::make_unique<hierarchical::Hosts>(world->context().ranks, roster, std::move(local));
  };
  mpi::or_abort(*world, rendezvous);
  Collective barrier;
  barrier.site = "ngd.init()";
  world->wait(world->submit(barrier), timeout_seconds);
  if (!hosts) {  // all ranks are on one host
    world->close();
    return local;
  }
  world->use(std::move(hosts));
  return world;
}

}  // namespace ngd::comm
