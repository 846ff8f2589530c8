// SPDX-License-Identifier: Apache-2.0
// How the ranks of an MPI job learn who shares their host, and meet there in shared memory.
#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <random>
#include <string>

#include "comm/communicator.hpp"
#include "comm/hierarchical/hosts.hpp"
#include "comm/mpi/mpi_communicator.hpp"

namespace ngd::comm {
namespace hierarchical {
namespace {

// What every rank tells all others.
struct Card {
  std::uint32_t random[4];  // rank 0's makes the job's key
  char host[240];
};

std::vector<Card> exchange_cards(Communicator& world, double timeout_seconds) {
  Card mine{};
  std::random_device random;
  for (std::uint32_t& word : mine.random) word = random();
  const std::string host = host_name();
  if (host.size() >= sizeof(mine.host))
    fail(ErrorKind::Init, "NGD_HOST: expected at most ", sizeof(mine.host) - 1, " characters; got ",
         host.size());
  std::memcpy(mine.host, host.data(), host.size());
  std::vector<Card> cards(static_cast<std::size_t>(world.size()));
  Collective gather;
  gather.kind = Kind::AllGather;
  gather.count = sizeof(Card);
  gather.source = &mine;
  gather.destination = cards.data();
  gather.site = "ngd.init";
  world.wait(world.submit(gather), timeout_seconds);
  return cards;
}

// By rank: the number of its host, in the order of their first ranks.
std::vector<int> number_hosts(const std::vector<Card>& cards) {
  std::map<std::string, int> numbers;
  std::vector<int> host_of;
  for (const Card& card : cards)
    host_of.push_back(numbers.emplace(card.host, static_cast<int>(numbers.size())).first->second);
  return host_of;
}

std::unique_ptr<Communicator> meet_on_host(const std::vector<Card>& cards,
                                           const std::vector<int>& host_of, int rank,
                                           double timeout_seconds,
                                           const std::function<bool()>& interrupt) {
  const int host = host_of[static_cast<std::size_t>(rank)];
  const auto me = host_of.begin() + rank;
  const auto local_rank = static_cast<int>(std::count(host_of.begin(), me, host));
  const auto local_size = static_cast<int>(std::count(host_of.begin(), host_of.end(), host));
  if (local_size == 1) return make_self_communicator();
  std::string key = "hosts:";
  for (std::uint32_t word : cards.front().random) key += concat(std::hex, word, ".");
  return make_shm_communicator(concat(key, ":", host), local_rank, local_size, timeout_seconds,
                               interrupt);
}

}  // namespace
}  // namespace hierarchical

std::unique_ptr<Communicator> make_hierarchical_communicator(
    int fortran_handle, double timeout_seconds, const std::function<bool()>& interrupt) {
  auto family = std::make_shared<mpi::Family>(mpi::open_endpoint(fortran_handle, timeout_seconds));
  auto world = std::make_unique<mpi::MpiCommunicator>(std::move(family));
  world->set_interrupt(interrupt);
  std::unique_ptr<Communicator> local;
  auto host_of = std::make_shared<std::vector<int>>();
  try {
    const auto cards = hierarchical::exchange_cards(*world, timeout_seconds);
    *host_of = hierarchical::number_hosts(cards);
    local = hierarchical::meet_on_host(cards, *host_of, world->rank(), timeout_seconds, interrupt);
  } catch (const Error& error) {
    world->abort(error.what());
    throw;
  }
  Collective barrier;
  barrier.site = "ngd.init";
  world->wait(world->submit(barrier), timeout_seconds);
  if (local->size() == world->size()) {  // one host after all
    world->close();
    return local;
  }
  world->use(std::make_unique<hierarchical::Hosts>(world->channel(), host_of, std::move(local)));
  return world;
}

}  // namespace ngd::comm
