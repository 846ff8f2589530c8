// SPDX-License-Identifier: Apache-2.0
// Tests every kind over MPI, and over hosts that NGD_HOST simulates on this one. Every rank of an
// mpirun runs all of these tests in the same order.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <thread>

#include "base/error.hpp"
#include "comm/communicator.hpp"
#include "model.hpp"
#include "tally.hpp"

namespace ngd::comm {
namespace {

constexpr double kTimeout = 60;

// How the ranks are divided among hosts.
enum class Placement { Mpi, Pairs, RoundRobin, Uneven, OneHost };
constexpr Placement kPlacements[] = {Placement::Mpi, Placement::Pairs, Placement::RoundRobin,
                                     Placement::Uneven};

int host_of(Placement placement, int rank, int size) {
  switch (placement) {
    case Placement::Pairs:
      return rank / 2;
    case Placement::RoundRobin:
      return size % 2 == 0 ? rank % (size / 2) : rank;
    case Placement::Uneven:
      return rank == 0 ? 0 : 1;
    default:
      return 0;
  }
}

int launched(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? 0 : std::atoi(value);
}

std::unique_ptr<Communicator> make(Placement placement) {
  if (placement == Placement::Mpi) return make_mpi_communicator(-1, kTimeout);
  const int rank = launched("OMPI_COMM_WORLD_RANK");
  const int size = std::max(1, launched("OMPI_COMM_WORLD_SIZE"));
  ::setenv("NGD_HOST", concat("host-", host_of(placement, rank, size)).c_str(), 1);
  return make_hierarchical_communicator(-1, kTimeout);
}

class Hosts : public ::testing::TestWithParam<Placement> {
 protected:
  void SetUp() override { comm_ = make(GetParam()); }
  void TearDown() override { comm_->close(); }
  int rank() const { return comm_->rank(); }
  int size() const { return comm_->size(); }

  void run(Communicator& group, const Collective& call) {
    group.wait(group.submit(call), kTimeout);
  }

  // In place.
  static Collective sum_of(std::vector<std::int32_t>& data) {
    Collective call;
    call.kind = Kind::AllReduce;
    call.op = ReduceOp::Sum;
    call.dtype = DType::I32;
    call.count = data.size();
    call.source = call.destination = data.data();
    return call;
  }

  void check(Communicator& group, const Case& each, unsigned seed, bool shared) {
    Model model(each, group.size(), seed);
    const Bytes input = model.source(group.rank());
    const Bytes want = model.destination(group.rank());
    Collective call = model.collective(group.rank());
    Bytes source = input;
    Bytes destination(want.size() + 1, std::byte{0xee});
    SharedBlock block;
    if (shared) block = group.allocate(want.size() + 1);
    call.source = source.data();
    call.destination = shared ? block.data : destination.data();
    run(group, call);
    if (shared) std::memcpy(destination.data(), block.data, want.size());
    if (shared) group.release(block);
    destination.resize(want.size());
    ASSERT_TRUE(destination == want) << describe(call) << " on rank " << rank();
    ASSERT_TRUE(source == input) << "the source of " << describe(call) << " has changed";
  }

  std::unique_ptr<Communicator> comm_;
};

TEST_P(Hosts, HaveTheExpectedCommunicatorAndLocalRanks) {
  const bool pairs = GetParam() == Placement::Pairs || GetParam() == Placement::RoundRobin;
  if (pairs && size() % 2 == 0 && size() > 2) {
    EXPECT_EQ(comm_->name(), "hierarchical");
    EXPECT_EQ(comm_->local_size(), 2);
    EXPECT_EQ(comm_->local_rank(),
              GetParam() == Placement::Pairs ? rank() % 2 : rank() / (size() / 2));
  }
  if (GetParam() == Placement::Uneven && size() > 2) {
    EXPECT_EQ(comm_->name(), "mpi");
    EXPECT_EQ(comm_->local_size(), rank() == 0 ? 1 : size() - 1);
  }
}

TEST(OneHost, UsesSharedMemory) {
  const auto group = make(Placement::OneHost);
  EXPECT_EQ(group->name(), group->size() > 1 ? "shm" : "self");
  group->close();
}

TEST_P(Hosts, ComputeEveryKindAndSize) {
  unsigned seed = 0;
  std::mt19937 random(7);
  for (const Kind kind : kKindsHere)
    for (const std::uint64_t count : {0, 1, 25, 700, 2049, 300'001}) {
      for (const bool uneven : {false, true}) {
        const bool even_only = kind == Kind::Broadcast || kind == Kind::Reduce;
        if (uneven && even_only) continue;
        Case each{kind, ReduceOp::Sum, DType::I32, count};
        if (!reduces(kind)) each.op = ReduceOp::None;
        each.root = static_cast<int>(++seed) % size();
        if (uneven) each.counts = random_counts(size(), count, random);
        check(*comm_, each, seed, seed % 2 == 0);
      }
    }
}

TEST_P(Hosts, ExchangeInPlaceOnAllRanksOrSome) {
  unsigned seed = 50;
  for (const std::uint64_t count : {1, 25, 700, 2049, 300'001})
    for (const bool shared : {false, true})
      for (const bool on_all : {false, true}) {
        Model model({Kind::AllToAll, ReduceOp::None, DType::I32, count}, size(), ++seed);
        const Bytes& input = model.source(rank());
        const Bytes want = model.destination(rank());
        Collective call = model.collective(rank());
        const SharedBlock block = comm_->allocate(want.size());
        Bytes own(want.size()), source = input;
        call.destination = shared ? block.data : own.data();
        std::memcpy(call.destination, input.data(), input.size());
        call.source = on_all || rank() % 2 == 1 ? call.destination : source.data();
        run(*comm_, call);
        ASSERT_EQ(std::memcmp(call.destination, want.data(), want.size()), 0)
            << describe(call) << " on rank " << rank();
        comm_->release(block);
      }
}

TEST_P(Hosts, ReduceInTheCanonicalOrder) {
  const bool in_order = GetParam() == Placement::Pairs || GetParam() == Placement::Mpi;
  unsigned seed = 100;
  for (const DType dtype : {DType::F32, DType::BF16, DType::F64, DType::I64})
    for (const ReduceOp op :
         {ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Min, ReduceOp::Max, ReduceOp::Prod}) {
      if (!in_order && is_floating(dtype) && op != ReduceOp::Min && op != ReduceOp::Max) continue;
      if (op == ReduceOp::Mean && !is_floating(dtype)) continue;
      for (const Kind kind : {Kind::ReduceScatter, Kind::Reduce})
        check(*comm_, Case{kind, op, dtype, 30'000}, ++seed, false);
    }
}

// The model of an all_reduce is a reduce to each rank.
TEST_P(Hosts, AllReduceInTheCanonicalOrder) {
  const bool in_order = GetParam() == Placement::Pairs || GetParam() == Placement::Mpi;
  unsigned seed = 1000;
  for (const DType dtype : {DType::F32, DType::BF16, DType::F16, DType::I16})
    for (const std::uint64_t count : {1, 5000, 65'537, 700'001, 3'000'000})
      for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Max}) {
        if (!in_order && is_floating(dtype) && op != ReduceOp::Max) continue;
        if (op == ReduceOp::Mean && !is_floating(dtype)) continue;
        if (count > 1'000'000 && (op != ReduceOp::Sum || dtype == DType::F16)) continue;
        Case each{Kind::Reduce, op, dtype, count};
        each.root = rank();
        const Model model(each, size(), ++seed);
        Bytes data = model.source(rank());
        Collective call;
        call.kind = Kind::AllReduce;
        call.op = op;
        call.dtype = dtype;
        call.count = count;
        call.source = call.destination = data.data();
        run(*comm_, call);
        ASSERT_TRUE(data == model.destination(rank())) << describe(call) << " on rank " << rank();
      }
}

TEST_P(Hosts, RunManyPendingCollectives) {
  std::vector<std::vector<std::int32_t>> data;
  std::vector<Work> works;
  for (std::size_t i = 0; i < 30; ++i)
    data.emplace_back(i % 3 == 0 ? 200'000 + i : 10 + i, rank() + static_cast<int>(i));
  for (std::size_t i = 0; i < data.size(); ++i) {
    Collective call;
    call.kind = i % 5 == 4 ? Kind::Broadcast : Kind::AllReduce;
    call.op = i % 5 == 4 ? ReduceOp::None : ReduceOp::Sum;
    call.dtype = DType::I32;
    call.count = data[i].size();
    call.root = call.kind == Kind::Broadcast ? static_cast<int>(i) % size() : 0;
    call.source = call.destination = data[i].data();
    works.push_back(comm_->submit(call));
  }
  for (std::size_t i = works.size(); i-- > 0;) comm_->wait(works[i], kTimeout);
  for (std::size_t i = 0; i < data.size(); ++i) {
    const int n = size();
    const int sum = n * static_cast<int>(i) + n * (n - 1) / 2;
    const int want = i % 5 == 4 ? static_cast<int>(i) % n + static_cast<int>(i) : sum;
    for (std::int32_t value : data[i]) ASSERT_EQ(value, want) << "work " << i;
  }
}

TEST_P(Hosts, SendAndReceive) {
  if (size() == 1) GTEST_SKIP() << "needs two ranks";
  const int next = (rank() + 1) % size();
  const int previous = (rank() - 1 + size()) % size();
  for (const std::size_t count : {std::size_t{0}, std::size_t{3}, std::size_t{1'500'000}}) {
    std::vector<std::vector<double>> out, in;
    std::vector<Work> works;
    for (int i = 0; i < 3; ++i) {
      out.emplace_back(count, rank() + 0.25 * i);
      in.emplace_back(count, -1.0);
    }
    for (int i = 0; i < 3; ++i) {
      Collective call;
      call.dtype = DType::F64;
      call.count = count;
      call.tag = i;
      call.kind = Kind::Send;
      call.root = next;
      call.source = out[static_cast<std::size_t>(i)].data();
      works.push_back(comm_->submit(call));
      call.kind = Kind::Receive;
      call.root = previous;
      call.source = nullptr;
      call.destination = in[static_cast<std::size_t>(i)].data();
      works.push_back(comm_->submit(call));
    }
    run(*comm_, Collective{});  // not part of the sequence of sends
    for (std::size_t i = works.size(); i-- > 0;) comm_->wait(works[i], kTimeout);
    for (int i = 0; i < 3; ++i)
      for (double value : in[static_cast<std::size_t>(i)]) ASSERT_EQ(value, previous + 0.25 * i);
  }
}

// The data may arrive after the notice that the sender has left.
TEST_P(Hosts, DeliverMessagesOfARankThatHasLeft) {
  if (size() == 1) GTEST_SKIP() << "needs two ranks";
  // Too long for the header, and short enough to be complete.
  std::vector<std::int32_t> data(1200, rank());
  Collective call;
  call.dtype = DType::I32;
  call.count = data.size();
  call.kind = rank() == 0 ? Kind::Send : Kind::Receive;
  call.root = 1 - rank();
  call.source = call.destination = data.data();
  if (rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  if (rank() < 2) run(*comm_, call);
  if (rank() == 0) comm_->close();
  for (const std::int32_t value : data) ASSERT_EQ(value, rank() < 2 ? 0 : rank());
}

// With long data MPI would keep some memory forever, and the process could only exit.
TEST_P(Hosts, RequireThatSendAndReceiveAgree) {
  if (size() == 1) GTEST_SKIP() << "needs two ranks";
  std::vector<float> data(4);
  Collective call;
  call.dtype = DType::F32;
  call.count = data.size();
  call.kind = rank() == 0 ? Kind::Send : Kind::Receive;
  call.root = rank() == 0 ? 1 : 0;
  call.tag = rank() == 0 ? 5 : 6;
  call.source = call.destination = data.data();
  try {
    if (rank() < 2) run(*comm_, call);
    EXPECT_NE(rank(), 1) << "what was received is not what was asked for";
    run(*comm_, Collective{});  // a small send is complete before the receiver arrives
    ADD_FAILURE() << "rank " << rank() << " saw no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::CollectiveMismatch) << error.what();
    EXPECT_NE(std::string(error.what()).find("tag 5"), std::string::npos) << error.what();
  }
}

TEST_P(Hosts, RequireThatUnevenAllToAllAgrees) {
  if (size() == 1) GTEST_SKIP() << "needs two ranks";
  const std::vector<std::uint64_t> sent(static_cast<std::size_t>(size()), 2);
  std::vector<std::uint64_t> received = sent;
  if (rank() == 1) received[0] = 3;
  std::vector<std::byte> data(100);
  Collective call;
  call.kind = Kind::AllToAll;
  call.counts = sent.data();
  call.receive_counts = received.data();
  call.source = data.data();
  call.destination = data.data() + 50;
  try {
    run(*comm_, call);
    run(*comm_, Collective{});  // ranks that agree are complete, and are notified of the error now
    ADD_FAILURE() << "rank " << rank() << " saw no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::CollectiveMismatch) << error.what();
  }
}

TEST_P(Hosts, SplitIntoGroups) {
  const auto check_group = [&](Communicator* group, int color) {
    if (group == nullptr) return;
    unsigned seed = 100u * static_cast<unsigned>(color);
    for (const Kind kind : kKindsHere)
      for (const std::uint64_t count : {3, 50'000}) {
        Case each{kind, reduces(kind) ? ReduceOp::Sum : ReduceOp::None, DType::I32, count};
        check(*group, each, ++seed, count == 3);
      }
  };
  const auto half = comm_->split(rank() % 2, -rank());
  EXPECT_EQ(half->size(), (size() + 1 - rank() % 2) / 2);
  EXPECT_EQ(half->rank(), half->size() - 1 - rank() / 2);  // in the order of the keys
  check_group(half.get(), rank() % 2);
  const auto pair = comm_->split(rank() / 2, 0);
  EXPECT_EQ(pair->rank(), rank() % 2);
  check_group(pair.get(), rank() / 2);
  const auto some = comm_->split(rank() == 0 ? -1 : 0, 0);
  EXPECT_EQ(some == nullptr, rank() == 0);
  check_group(some.get(), 0);
  const auto all = comm_->split(0, 0);
  check_group(all.get(), 0);
  const auto quarter = half->split(half->rank() / 2, 0);
  check_group(quarter.get(), rank() % 2);
  for (Communicator* each : {quarter.get(), all.get(), some.get(), pair.get(), half.get()})
    if (each != nullptr) each->close();
}

// Each rank waits for the groups in another order, so each wait must advance the works of all
// groups.
TEST_P(Hosts, WaitForOverlappingGroupsInAnyOrder) {
  const auto pair = comm_->split(rank() / 2, 0);
  const auto half = comm_->split(rank() % 2, 0);
  Communicator* groups[] = {comm_.get(), pair.get(), half.get()};
  for (int round = 0; round < 4; ++round) {
    std::vector<std::vector<std::int32_t>> data;
    std::vector<Work> works;
    for (Communicator* group : groups) {
      data.emplace_back(round % 2 == 0 ? 300'000 : 10, 1);
      works.push_back(group->submit(sum_of(data.back())));
    }
    for (int i = 0; i < 3; ++i) {
      const auto g = static_cast<std::size_t>((i + rank() + round) % 3);
      groups[g]->wait(works[g], kTimeout);
      for (std::int32_t value : data[g]) ASSERT_EQ(value, groups[g]->size());
    }
  }
  half->close();
  pair->close();
}

// The pending collectives are at different stages on the ranks when they split.
TEST_P(Hosts, SplitWhileACollectiveIsPending) {
  for (int round = 0; round < 6; ++round) {
    std::vector<std::int32_t> data(4 << 20, 1);
    const Work work = comm_->submit(sum_of(data));
    for (int looks = (rank() + round) % size() * 10; looks > 0; --looks) comm_->done(work);
    const auto half = comm_->split(rank() % 2, 0);
    comm_->wait(work, kTimeout);
    for (const std::int32_t value : data) ASSERT_EQ(value, size());
    half->close();
  }
}

// Rank 0 is not notified of the group, and has more numbers left than the other ranks when all
// split.
TEST_P(Hosts, CreateAGroupByItsMembersOnly) {
  if (size() < 3 || comm_->name() == "shm") GTEST_SKIP() << "needs a world over MPI, and 3 ranks";
  static int groups = 0;
  const std::string key = concat("members:", ::getppid(), ".", ++groups, ".");
  std::vector<int> members;
  for (int r = size() - 1; r > 0; --r) members.push_back(r);
  std::unique_ptr<Communicator> group;
  if (rank() > 0) {
    group = make_group_of(*comm_, members, next_group_number(*comm_), key, kTimeout);
    EXPECT_EQ(group->rank(), size() - 1 - rank());
    EXPECT_EQ(group->size(), size() - 1);
  }
  const auto all = comm_->split(0, 0);
  for (unsigned seed = 0; seed < 3; ++seed)
    for (Communicator* each : {all.get(), group.get(), comm_.get()})
      if (each != nullptr)
        for (const std::uint64_t count : {5, 100'000})
          check(*each, Case{Kind::ReduceScatter, ReduceOp::Sum, DType::I32, count}, seed, seed > 1);
  if (group) group->close();
  all->close();
}

TEST_P(Hosts, ReportInWaitForIfACollectiveIsComplete) {
  if (size() == 1) GTEST_SKIP() << "needs two ranks";
  std::vector<std::int32_t> data(300'000, 1);
  const Tally looked;
  if (rank() == 0) {
    ASSERT_TRUE(looked.await(size() - 1));
  }
  const Work work = comm_->submit(sum_of(data));
  if (rank() != 0) {
    EXPECT_FALSE(comm_->wait_for(work, 0.05));
    looked.report(rank());
  }
  EXPECT_TRUE(comm_->wait_for(work, kTimeout));
  EXPECT_EQ(data[7], size());
}

TEST_P(Hosts, NameAMissingRankByItsNumberInTheWorld) {
  if (size() < 4) GTEST_SKIP() << "needs four ranks";
  const auto half = comm_->split(rank() % 2, 0);
  const Tally gave_up;
  if (rank() == 1) {
    ASSERT_TRUE(gave_up.await(half->size() - 1));
  }
  if (rank() % 2 == 1) {
    try {
      half->wait(half->submit(Collective{}), 0.5);
      EXPECT_EQ(rank(), 1) << "saw no error";  // the late rank finds all other ranks
    } catch (const Error& error) {
      if (rank() == 1) return;
      EXPECT_EQ(error.kind(), ErrorKind::CollectiveTimeout) << error.what();
      EXPECT_NE(std::string(error.what()).find("rank 1 "), std::string::npos) << error.what();
    }
    if (rank() != 1) gave_up.report(rank());
  }
  half->close();
}

std::string placement_name(const testing::TestParamInfo<Placement>& info) {
  const char* names[] = {"Mpi", "Pairs", "RoundRobin", "Uneven"};
  return names[static_cast<int>(info.param)];
}
INSTANTIATE_TEST_SUITE_P(Placed, Hosts, ::testing::ValuesIn(kPlacements), placement_name);

}  // namespace
}  // namespace ngd::comm

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const int failed = RUN_ALL_TESTS();
  ngd::comm::finalize_mpi();
  return failed;
}
