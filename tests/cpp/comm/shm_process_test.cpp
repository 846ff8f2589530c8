// SPDX-License-Identifier: Apache-2.0
// Tests ranks that are processes: the rendezvous, deaths, and leftovers.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "comm/shm/liveness.hpp"
#include "comm/shm/segment.hpp"
#include "processes.hpp"

namespace ngd::comm {
namespace {

void expect_success(std::vector<Child>& children) {
  for (std::size_t r = 0; r < children.size(); ++r) {
    const Outcome outcome = children[r].outcome();
    EXPECT_FALSE(outcome.kind) << "rank " << r << ": " << outcome.message;
    EXPECT_EQ(outcome.message, "") << "rank " << r;
  }
}

// Call `kind` on blocks in `own`, which has the elements of the larger side.
Collective call_of(Kind kind, float* source, float* destination, std::size_t count, int size) {
  Collective call = all_reduce(ReduceOp::Mean, DType::F32, source, destination, count);
  call.kind = kind;
  if (!reduces(kind)) call.op = ReduceOp::None;
  if (has_blocks(kind)) call.count = count / static_cast<std::size_t>(size);
  call.root = size - 1;
  return call;
}

// One collective of each algorithm (inline, direct, staged, ring), of each kind and memory, and a
// ring of sends.
void mixed_round(Communicator& group, const SharedBlock& block, std::vector<float>& own) {
  auto* shared = static_cast<float*>(block.data);
  const std::size_t count = own.size();
  std::vector<float> other(count);
  std::vector<Collective> works;
  float tiny = 1;
  works.push_back(all_reduce(ReduceOp::Sum, DType::F32, &tiny, &tiny, 1));
  works.push_back(all_reduce(ReduceOp::Mean, DType::F32, shared, shared, count));
  works.push_back(all_reduce(ReduceOp::Mean, DType::F32, own.data(), own.data(), count));
  works.push_back(works.back());
  works.back().algorithm = Algorithm::Ring;
  works.push_back(broadcast(DType::F32, own.data(), own.data(), count, group.size() - 1));
  for (const Kind kind : {Kind::ReduceScatter, Kind::AllGather, Kind::Reduce, Kind::Gather,
                          Kind::Scatter, Kind::AllToAll})
    for (float* source : {own.data(), shared})
      works.push_back(call_of(kind, source, other.data(), count, group.size()));
  works.push_back(barrier());
  for (const Collective& each : works) group.wait(group.submit(each), kSeconds);
  if (tiny != static_cast<float>(group.size())) throw std::runtime_error("wrong sum");
  Collective send = call_of(Kind::Send, own.data(), nullptr, count, group.size());
  Collective receive = call_of(Kind::Receive, nullptr, other.data(), count, group.size());
  send.root = (group.rank() + 1) % group.size();
  receive.root = (group.rank() + group.size() - 1) % group.size();
  const Work sent = group.submit(send), received = group.submit(receive);
  group.wait(sent, kSeconds);
  group.wait(received, kSeconds);
}

void fill(const SharedBlock& block, std::vector<float>& own, int rank) {
  std::fill(own.begin(), own.end(), static_cast<float>(rank));
  std::copy(own.begin(), own.end(), static_cast<float*>(block.data));
}

constexpr std::size_t kCount = 300'000;

TEST(Processes, RunAllKinds) {
  for (const auto& [size, per_node] : {std::pair{2, 0}, {3, 0}, {4, 0}, {4, 2}}) {
    const Body everything = [](Communicator& group) {
      std::vector<float> own(kCount);
      const SharedBlock block = group.allocate(kCount * sizeof(float));
      fill(block, own, group.rank());
      for (int round = 0; round < 10; ++round) mixed_round(group, block, own);
      // The mean of all ranks' numbers.
      const float want = static_cast<float>(group.size() - 1) / 2;
      for (std::size_t i = 0; i < kCount; ++i)
        if (own[i] != want || static_cast<float*>(block.data)[i] != want)
          throw std::runtime_error("wrong mean");
    };
    auto children = start_ranks(size, everything, per_node);
    expect_success(children);
  }
}

void run_until_killed(Communicator& group) {
  std::vector<float> own(kCount);
  const SharedBlock block = group.allocate(kCount * sizeof(float));
  for (;;) mixed_round(group, block, own);
}

TEST(Death, IsDetectedByAllAtOnceWhereverItHappens) {
  std::mt19937 random(7);
  for (int repeat = 0; repeat < 24; ++repeat) {
    const int size = 2 + repeat % 3;
    const auto victim = static_cast<std::size_t>(random()) % static_cast<std::size_t>(size);
    auto children = start_ranks(size, run_until_killed, repeat % 2 == 0 && size == 4 ? 2 : 0);
    std::this_thread::sleep_for(std::chrono::microseconds(60'000 + random() % 60'000));
    const auto start = Clock::now();
    children[victim].kill();
    if (repeat % 2 == 0) children[victim].reap();  // otherwise it stays a zombie
    for (std::size_t r = 0; r < children.size(); ++r) {
      if (r == victim) continue;
      const Outcome outcome = children[r].outcome();
      ASSERT_EQ(outcome.kind, ErrorKind::RankLost) << outcome.message;
      EXPECT_NE(outcome.message.find("rank " + std::to_string(victim) + " "), std::string::npos)
          << outcome.message;
    }
    EXPECT_LT(seconds_since(start), 1);
  }
}

TEST(Death, InAGroupIsDetectedByTheGroupAndThenByAll) {
  std::mt19937 random(8);
  for (int repeat = 0; repeat < 6; ++repeat) {
    auto children = start_ranks(4, [](Communicator& world) {
      std::vector<float> own(kCount);
      const SharedBlock block = world.allocate(kCount * sizeof(float));
      fill(block, own, world.rank());
      const auto group = world.split(world.rank() / 2, 0);
      for (int i = 0; i < 1000; ++i) {
        mixed_round(*group, block, own);
        if (i % 4 == 3) world.wait(world.submit(barrier()), kSeconds);
      }
    });
    std::this_thread::sleep_for(std::chrono::microseconds(60'000 + random() % 60'000));
    const auto start = Clock::now();
    children[2].kill();
    for (const std::size_t r : {3, 0, 1}) {
      const Outcome outcome = children[r].outcome();
      ASSERT_EQ(outcome.kind, ErrorKind::RankLost) << outcome.message;
      EXPECT_NE(outcome.message.find("rank 2 "), std::string::npos) << outcome.message;
      // Rank 3 waits for rank 2 itself. The other ranks are notified in the next collective of the
      // world.
      EXPECT_LT(seconds_since(start), r == 3 ? 1 : 10);
    }
  }
}

TEST(Death, IsDetectedWhileAllSleep) {
  auto children = start_ranks(3, [](Communicator& group) {
    if (group.rank() == 1) ::pause();
    group.wait(group.submit(barrier("sleep.py:1")), kSeconds);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  const auto start = Clock::now();
  children[1].kill();
  for (const std::size_t r : {0, 2}) {
    const Outcome outcome = children[r].outcome();
    EXPECT_EQ(outcome.kind, ErrorKind::RankLost);
    EXPECT_NE(outcome.message.find("rank 1 "), std::string::npos) << outcome.message;
    EXPECT_NE(outcome.message.find("barrier at sleep.py:1"), std::string::npos) << outcome.message;
  }
  EXPECT_LT(seconds_since(start), 0.5);
}

TEST(Death, AfterTheLastShareIsNotAnError) {
  auto children = start_ranks(3, [](Communicator& group) {
    group.wait(group.submit(barrier()), kSeconds);
    if (group.rank() == 1) ::_exit(0);  // no close(), no destructor
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  });
  for (const std::size_t r : {0, 2}) {
    const Outcome outcome = children[r].outcome();
    EXPECT_FALSE(outcome.kind) << outcome.message;
  }
}

TEST(Death, IsDetectedWithoutPidfds) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::alarm(60);
    for (;;) ::pause();
  }
  std::vector<shm::PeerProcess> peers(2);
  for (shm::PeerProcess& peer : peers) {
    peer.pid = pid;
    peer.start_time = shm::start_time_of(pid);
  }
  peers[1].start_time -= 1;  // in another container, its number belongs to another process here
  const auto liveness = shm::make_process_liveness(std::move(peers));
  EXPECT_TRUE(liveness->alive(0));
  EXPECT_TRUE(liveness->alive(1)) << "what cannot be seen is no proof of death";
  ::kill(pid, SIGKILL);
  siginfo_t info;
  ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT);
  EXPECT_FALSE(liveness->alive(0)) << "a zombie is dead";
  ::waitpid(pid, nullptr, 0);
  EXPECT_FALSE(liveness->alive(0));
}

void expect_begins(const Outcome& outcome, const std::string& beginning) {
  EXPECT_EQ(outcome.message.substr(0, beginning.size()), beginning) << outcome.message;
}

TEST(Rendezvous, NamesTheMissingRank) {
  const std::string key = new_key();
  const auto start = Clock::now();
  const Body nothing = [](Communicator&) {};
  Child zero = start_rank(key, 0, 4, 0.5, nothing), two = start_rank(key, 2, 4, 10, nothing);
  for (Child* each : {&zero, &two}) {
    const Outcome outcome = each->outcome();
    EXPECT_EQ(outcome.kind, ErrorKind::CollectiveTimeout);
    expect_begins(outcome, "ngd.init: rank 1, rank 3 did not arrive within 0.5 s.\n");
  }
  EXPECT_LT(seconds_since(start), 2);
}

TEST(Rendezvous, WithoutRankZeroNamesIt) {
  const std::string key = new_key();
  Child one = start_rank(key, 1, 2, 0.3, [](Communicator&) {});
  const Outcome outcome = one.outcome();
  EXPECT_EQ(outcome.kind, ErrorKind::CollectiveTimeout);
  expect_begins(outcome, "ngd.init: rank 0 did not arrive within 0.3 s.\n");
}

TEST(Rendezvous, TheShortestDeadlineEndsItForAll) {
  const std::string key = new_key();
  const Body nothing = [](Communicator&) {};
  Child zero = start_rank(key, 0, 3, 20, nothing), one = start_rank(key, 1, 3, 0.5, nothing);
  for (Child* each : {&zero, &one}) {
    const Outcome outcome = each->outcome();
    EXPECT_EQ(outcome.kind, ErrorKind::CollectiveTimeout);
    expect_begins(outcome, "ngd.init: rank 2 did not arrive within 0.5 s.\n");
  }
}

TEST(Rendezvous, ADeathIsDetectedAtOnce) {
  for (const int victim : {0, 1}) {
    const std::string key = new_key();
    const Body nothing = [](Communicator&) {};
    std::vector<Child> ranks;
    for (const int rank : {0, 1, 2}) ranks.push_back(start_rank(key, rank, 4, 20, nothing));
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    const auto start = Clock::now();
    ranks[static_cast<std::size_t>(victim)].kill();
    for (const int rank : {0, 1, 2}) {
      if (rank == victim) continue;
      const Outcome outcome = ranks[static_cast<std::size_t>(rank)].outcome();
      EXPECT_EQ(outcome.kind, ErrorKind::RankLost);
      expect_begins(outcome, "ngd.init: rank " + std::to_string(victim) + " has died or ended.");
    }
    EXPECT_LT(seconds_since(start), 1);
  }
}

TEST(Rendezvous, SizesMustAgree) {
  const std::string key = new_key();
  const Body nothing = [](Communicator&) {};
  Child zero = start_rank(key, 0, 3, 10, nothing), one = start_rank(key, 1, 2, 10, nothing);
  for (Child* each : {&zero, &one}) {
    const Outcome outcome = each->outcome();
    EXPECT_EQ(outcome.kind, ErrorKind::Init);
    EXPECT_EQ(outcome.message,
              "ngd.init: expected the same number of ranks on all ranks; got 3 on rank 0 and 2 on "
              "rank 1");
  }
}

TEST(Rendezvous, ASecondJobWithTheSameKeyIsRejected) {
  const std::string key = new_key();
  const Body reduce = [](Communicator& group) { group.wait(group.submit(barrier()), kSeconds); };
  std::vector<Child> first;
  first.push_back(start_rank(key, 0, 3, 10, reduce));
  first.push_back(start_rank(key, 1, 3, 10, reduce));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  Child zero = start_rank(key, 0, 3, 10, reduce), one = start_rank(key, 1, 3, 10, reduce);
  for (Child* each : {&zero, &one}) {
    const Outcome outcome = each->outcome();
    EXPECT_EQ(outcome.kind, ErrorKind::Init);
    EXPECT_NE(outcome.message.find("another running job"), std::string::npos) << outcome.message;
  }
  first.push_back(start_rank(key, 2, 3, 10, reduce));
  expect_success(first);
}

TEST(Rendezvous, TwoSimultaneousJobsStaySeparate) {
  const Body check_sum = [](Communicator& group) {
    std::int64_t sum = group.rank() + 1;
    for (int i = 0; i < 100; ++i) {
      std::int64_t value = group.rank() + 1;
      group.wait(group.submit(all_reduce(ReduceOp::Sum, DType::I64, &value, &value, 1)), kSeconds);
      sum = value;
    }
    if (sum != group.size() * (group.size() + 1) / 2) throw std::runtime_error("wrong sum");
  };
  auto three = start_ranks(3, check_sum), two = start_ranks(2, check_sum);
  expect_success(three);
  expect_success(two);
}

TEST(Rendezvous, OnlyASealedMemfdIsAccepted) {
  const auto refused = [](int file) {
    const shm::Descriptor fd(file);
    EXPECT_EQ(::ftruncate(fd.get(), 1 << 28), 0);
    const Outcome outcome = outcome_of([&] { shm::map_segment(fd, 3); });
    EXPECT_EQ(outcome.kind, ErrorKind::Init) << outcome.message;
    EXPECT_NE(outcome.message.find("expected rank 3 to send"), std::string::npos)
        << outcome.message;
  };
  refused(::memfd_create("not sealed", MFD_ALLOW_SEALING));
  refused(::memfd_create("not to be sealed", 0));
  refused(::open("/var/tmp", O_TMPFILE | O_RDWR, 0600));  // has no seals: F_GET_SEALS fails
}

TEST(Rendezvous, AnInterruptEndsIt) {
  const auto start = Clock::now();
  const std::string key = new_key();
  Child zero(
      [&] { make_shm_communicator(key, 0, 2, 30, [=] { return seconds_since(start) > 0.2; }); });
  EXPECT_EQ(zero.outcome().kind, ErrorKind::Interrupted);
  EXPECT_LT(seconds_since(start), 2);
}

std::size_t open_files() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(files), end(files)));
}

std::size_t mapped_segments() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);)
    if (line.find("memfd:ngd") != std::string::npos) ++count;
  return count;
}

// ---- the memory that ranks access on several NUMA nodes

// Remove from this process, for its lifetime, access to the memory that it must not touch in the
// segment of a rank: the block at `offset` in its heap except [first, last), which stays readable.
class Forbidden {
 public:
  Forbidden(int rank, std::size_t offset, std::size_t bytes, std::size_t first, std::size_t last)
      : block_(base_of(rank) + offset), bytes_(bytes) {
    protect(0, first, PROT_NONE);
    protect(first, last, PROT_READ);
    protect(last, bytes, PROT_NONE);
  }
  Forbidden(const Forbidden&) = delete;
  ~Forbidden() { protect(0, bytes_, PROT_READ | PROT_WRITE); }

 private:
  static std::byte* base_of(int rank) {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      const bool begins = line.find(" 00000000 ") != std::string::npos;
      if (!begins || line.find("memfd:ngd") == std::string::npos) continue;
      auto* base = reinterpret_cast<std::byte*>(std::stoull(line, nullptr, 16));
      const auto& record = *reinterpret_cast<const shm::RankRecord*>(base);
      if (record.magic == shm::kMagic && record.rank == rank) return base;
    }
    throw std::runtime_error("no segment of rank " + std::to_string(rank));
  }
  void protect(std::size_t from, std::size_t to, int allowed) const {
    if (from < to && ::mprotect(block_ + from, to - from, allowed) != 0) std::abort();
  }

  std::byte* block_;
  std::size_t bytes_;
};

constexpr std::size_t kPage = 4096, kPages = 64, kBlock = kPages * kPage;

// An all_reduce in place in shared memory, of 4 ranks, two per node in consecutive blocks of the
// group, whose world ranks are given. Each rank may read, outside of its node, its half of the
// block of its counterpart. Any other access is a SIGSEGV.
void stay_inside(Communicator& group, const SharedBlock& block, std::size_t offset,
                 const std::vector<int>& world) {
  auto* data = static_cast<std::int32_t*>(block.data);
  const std::size_t count = kBlock / sizeof *data;
  for (std::size_t i = 0; i < count; ++i)
    data[i] = static_cast<std::int32_t>(i) * (1 + group.rank());
  group.wait(group.submit(barrier()), kSeconds);
  {
    const int place = group.rank() % 2, other_node = 1 - group.rank() / 2;
    const std::size_t half = kBlock / 2, first = static_cast<std::size_t>(place) * half;
    const auto of = [&](int at) { return world[static_cast<std::size_t>(other_node * 2 + at)]; };
    const Forbidden counterpart(of(place), offset, kBlock, first, first + half);
    const Forbidden stranger(of(1 - place), offset, kBlock, 0, 0);
    group.wait(group.submit(all_reduce(ReduceOp::Sum, DType::I32, data, data, count)), kSeconds);
  }
  for (std::size_t i = 0; i < count; ++i)
    if (data[i] != static_cast<std::int32_t>(i) * 10) throw std::runtime_error("wrong sum");
  group.wait(group.submit(barrier()), kSeconds);
}

// Return a block at a page boundary, and its offset, which is equal on all ranks.
std::pair<SharedBlock, std::size_t> aligned_block(Communicator& group) {
  // The first block of the heap, at a page boundary.
  const SharedBlock raw = group.allocate(kBlock + kPage);
  static_assert(shm::kHeapOffset % kPage == 0);
  if (reinterpret_cast<std::uintptr_t>(raw.data) % kPage != 0)
    throw std::runtime_error("not at a page");
  return {{raw.data, kBlock}, shm::kHeapOffset};
}

TEST(MemoryNodes, OnlyCounterpartsAreReadAcrossNodesAndNoneIsWritten) {
  auto children = start_ranks(
      4,
      [](Communicator& world) {
        const auto [block, offset] = aligned_block(world);
        stay_inside(world, block, offset, {0, 1, 2, 3});
      },
      2);
  expect_success(children);
}

// The blocks of the world are not those of the nodes. The blocks of its groups are.
TEST(MemoryNodes, AGroupUsesTheNodesOfItsMembers) {
  const std::string key = new_key();
  std::vector<Child> children;
  for (int rank = 0; rank < 4; ++rank)
    children.emplace_back([=] {
      ::setenv("NGD_NUMA_NODE", rank % 2 == 0 ? "5" : "3", 1);
      const auto world = make_shm_communicator(key, rank, 4, kSeconds);
      const auto [block, offset] = aligned_block(*world);
      const auto group = world->split(0, rank % 2);
      stay_inside(*group, block, offset, {0, 2, 1, 3});
      group->close();
    });
  expect_success(children);
}

TEST(MemoryNodes, ABadNumberIsRejected) {
  Child child([key = new_key()] {
    ::setenv("NGD_NUMA_NODE", "left", 1);
    make_shm_communicator(key, 0, 1, kSeconds);
  });
  const Outcome outcome = child.outcome();
  EXPECT_EQ(outcome.kind, ErrorKind::Init);
  EXPECT_EQ(outcome.message,
            "NGD_NUMA_NODE: expected auto or a whole number from 0 to 1023; got 'left'");
}

TEST(Leftovers, NoDescriptorAndNoMappingRemains) {
  const std::string key = new_key();
  std::vector<Child> children;
  for (int rank = 0; rank < 3; ++rank)
    children.emplace_back([=] {
      const std::size_t files = open_files();
      for (int epoch = 0; epoch < 5; ++epoch) {
        const auto group = make_shm_communicator(key + std::to_string(epoch), rank, 3, kSeconds);
        if (mapped_segments() != 3) throw std::runtime_error("expected three segments");
        group->wait(group->submit(barrier()), kSeconds);
      }
      if (open_files() != files) throw std::runtime_error("a file descriptor is left");
      if (mapped_segments() != 0) throw std::runtime_error("a mapping is left");
    });
  expect_success(children);
}

TEST(Leftovers, NothingRemainsAfterAFailedRendezvous) {
  Child lonely([key = new_key()] {
    const std::size_t files = open_files();
    for (int i = 0; i < 3; ++i) {
      const Outcome outcome = outcome_of([&] { make_shm_communicator(key, 0, 2, 0.05); });
      if (outcome.kind != ErrorKind::CollectiveTimeout) throw std::runtime_error(outcome.message);
    }
    if (open_files() != files) throw std::runtime_error("a file descriptor is left");
    if (mapped_segments() != 0) throw std::runtime_error("a mapping is left");
  });
  const Outcome outcome = lonely.outcome();
  EXPECT_FALSE(outcome.kind) << outcome.message;
}

TEST(Fork, AForkedChildIsRejectedAndDoesNoHarm) {
  auto children = start_ranks(2, [](Communicator& group) {
    const Work work = group.submit(barrier());
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(20);
      const bool submit_refused =
          outcome_of([&] { group.submit(barrier()); }).kind == ErrorKind::GroupClosed;
      const Outcome wait = outcome_of([&] { group.wait(work, 5); });
      group.abort("from the child");
      group.close();
      const bool told = wait.message.find("forked child") != std::string::npos;
      ::_exit(submit_refused && wait.kind == ErrorKind::GroupClosed && told ? 0 : 1);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    if (status != 0) throw std::runtime_error("the child was not turned away");
    group.wait(work, kSeconds);
    group.wait(group.submit(barrier()), kSeconds);
  });
  expect_success(children);
}

// The sanitizers need all of it.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(Memory, ALimitOfTheAddressSpaceMakesSegmentsSmaller) {
  auto body = [](Communicator& group) {
    const SharedBlock block = group.allocate(64 << 20);
    std::memset(block.data, group.rank(), block.bytes);
    group.wait(
        group.submit(all_reduce(ReduceOp::Max, DType::U8, block.data, block.data, block.bytes)),
        kSeconds);
    if (static_cast<char*>(block.data)[block.bytes - 1] != 1) throw std::runtime_error("wrong");
    if (outcome_of([&] { group.allocate(std::size_t{2} << 30); }).kind != ErrorKind::OutOfMemory)
      throw std::runtime_error("expected OutOfMemory");
  };
  const std::string key = new_key();
  std::vector<Child> children;
  for (int rank = 0; rank < 2; ++rank)
    children.emplace_back([=] {
      const rlimit limit{std::size_t{3} << 30, std::size_t{3} << 30};
      ::setrlimit(RLIMIT_AS, &limit);
      const auto group = make_shm_communicator(key, rank, 2, kSeconds);
      body(*group);
    });
  expect_success(children);
}

TEST(Memory, WithoutAddressSpaceTheErrorNamesTheLimit) {
  const std::string key = new_key();
  std::vector<Child> children;
  for (int rank = 0; rank < 2; ++rank)
    children.emplace_back([=] {
      const rlimit limit{std::size_t{300} << 20, std::size_t{300} << 20};
      if (rank == 0) ::setrlimit(RLIMIT_AS, &limit);
      make_shm_communicator(key, rank, 2, 10);
    });
  const Outcome poor = children[0].outcome(), told = children[1].outcome();
  EXPECT_EQ(poor.kind, ErrorKind::OutOfMemory) << poor.message;
  EXPECT_EQ(told.kind, ErrorKind::Init) << told.message;
  for (const Outcome* each : {&poor, &told})
    EXPECT_NE(each->message.find("RLIMIT_AS"), std::string::npos) << each->message;
}
#endif

}  // namespace
}  // namespace ngd::comm
