// SPDX-License-Identifier: Apache-2.0
// Tests groups split from groups, and sends and receives, with threads as ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <random>

#include "comm/computations.hpp"
#include "comm/shm/letters.hpp"
#include "ranks.hpp"

namespace ngd::comm {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void expect_success(const std::vector<Outcome>& outcomes) {
  for (std::size_t r = 0; r < outcomes.size(); ++r)
    ASSERT_FALSE(outcomes[r].kind) << "rank " << r << ": " << outcomes[r].message;
}

void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

// All-reduce `value` over a group, in every element of a buffer.
void check_sum(Communicator& group, std::int64_t value, std::int64_t want, std::size_t count) {
  std::vector<std::int64_t> data(count, value);
  group.wait(group.submit(all_reduce(ReduceOp::Sum, DType::I64, data.data(), data.data(), count)),
             kSeconds);
  require(std::all_of(data.begin(), data.end(), [&](std::int64_t each) { return each == want; }),
          "wrong sum");
}

class GroupsTest : public testing::TestWithParam<int> {};

TEST_P(GroupsTest, SplitsByColorInTheOrderOfKeys) {
  expect_success(run_ranks(GetParam(), [](Communicator& world) {
    const int color = world.rank() % 2;
    const auto group = world.split(color, -world.rank());  // in reverse order
    const int members = (world.size() - color + 1) / 2;
    require(group->size() == members, "wrong size");
    require(group->rank() == members - 1 - world.rank() / 2, "wrong rank");
    std::int64_t sum = 0;
    for (int r = color; r < world.size(); r += 2) sum += r;
    for (const std::size_t count : {1, 1000, 300'000}) check_sum(*group, world.rank(), sum, count);
    const std::int64_t all = static_cast<std::int64_t>(world.size()) * (world.size() - 1) / 2;
    check_sum(world, world.rank(), all, 300'000);
  }));
}

TEST_P(GroupsTest, ANegativeColorIsInNoGroup) {
  expect_success(run_ranks(GetParam(), [](Communicator& world) {
    const auto group = world.split(world.rank() == 0 ? -1 : 5, 0);
    require((group == nullptr) == (world.rank() == 0), "wrong members");
    if (group) check_sum(*group, 1, world.size() - 1, 10);
    check_sum(world, 1, world.size(), 10);
  }));
}

// All ranks read what one rank writes, in the world and in a group of it. The memory is freed when
// all ranks have released it, and not earlier.
TEST_P(GroupsTest, ShareMemory) {
  expect_success(run_ranks(GetParam(), [](Communicator& world) {
    constexpr std::size_t kBytes = 3 << 20;
    const auto half = world.split(world.rank() % 2, 0);
    for (Communicator* group : {&world, half.get()}) {
      require(group->common_memory() != nullptr && !group->is_over(), "no memory in common");
      const int maker = group->size() - 1;
      const bool makes = group->rank() == maker;
      const auto barrier = [&] { group->wait(group->submit({}), kSeconds); };
      const auto told = [&](std::uint64_t number) {
        auto value = static_cast<std::int64_t>(number);
        const auto max = all_reduce(ReduceOp::Max, DType::I64, &value, &value, 1);
        group->wait(group->submit(max), kSeconds);
        return static_cast<std::uint64_t>(value);
      };
      const std::uint64_t place = told(makes ? common_memory_of(*group).make_common(kBytes) : 0);
      std::shared_ptr<void> memory = common_memory_of(*group).open_common(maker, place);
      auto* bytes = static_cast<std::uint8_t*>(memory.get());
      require(reinterpret_cast<std::uintptr_t>(bytes) % 64 == 0, "not aligned");
      const std::size_t part = kBytes / static_cast<std::size_t>(group->size());
      std::memset(bytes + static_cast<std::size_t>(group->rank()) * part, group->rank() + 1, part);
      barrier();
      for (int r = 0; r < group->size(); ++r)
        require(bytes[static_cast<std::size_t>(r + 1) * part - 1] == r + 1, "wrong byte");
      barrier();
      if (makes) memory.reset();
      if (makes && group->size() > 1)
        require(common_memory_of(*group).make_common(kBytes) != place,
                "memory that others use was given again");
      barrier();
      memory.reset();
      barrier();
      if (makes)
        require(common_memory_of(*group).make_common(kBytes) == place, "memory is not given back");
      barrier();
    }
  }));
}

TEST(CommonMemory, OutlivesItsGroup) {
  auto ranks = shm::make_thread_ranks(2);
  const std::uint64_t number = common_memory_of(*ranks[0]).make_common(100);
  std::vector<std::shared_ptr<void>> open;
  for (auto& rank : ranks) open.push_back(common_memory_of(*rank).open_common(0, number));
  ranks[1]->close();
  EXPECT_TRUE(ranks[1]->is_over());
  ranks.clear();
  std::memset(open[0].get(), 7, 100);
  EXPECT_EQ(static_cast<std::uint8_t*>(open[1].get())[99], 7);
}

TEST(CommonMemory, IsNotAvailableEverywhere) {
  const auto alone = make_self_communicator();
  EXPECT_FALSE(alone->common_memory() != nullptr);
  EXPECT_EQ(outcome_of([&] { common_memory_of(*alone).make_common(1); }).kind,
            ErrorKind::Unsupported);
  EXPECT_EQ(outcome_of([&] { common_memory_of(*alone).open_common(0, 0); }).kind,
            ErrorKind::Unsupported);
  const auto ranks = shm::make_thread_ranks(2);
  EXPECT_EQ(outcome_of([&] { common_memory_of(*ranks[0]).make_common(~std::size_t{0}); }).kind,
            ErrorKind::OutOfMemory);
  EXPECT_EQ(outcome_of([&] { common_memory_of(*ranks[0]).make_common(std::size_t{1} << 60); }).kind,
            ErrorKind::OutOfMemory);
}

TEST_P(GroupsTest, SplitRepeatedly) {
  expect_success(run_ranks(GetParam(), [](Communicator& world) {
    std::vector<std::unique_ptr<Communicator>> groups;
    Communicator* group = &world;
    while (group->size() > 1) {  // halves, down to groups of one rank
      groups.push_back(group->split(2 * group->rank() / group->size(), 0));
      group = groups.back().get();
      check_sum(*group, 1, group->size(), 70'000);
    }
    check_sum(*group, 7, 7, 10);
    while (!groups.empty()) groups.pop_back();
    check_sum(world, 1, world.size(), 10);
  }));
}

// Rows and columns of a mesh, started in one order, and waited for in another order on each rank. A
// wait advances all groups of the rank, so no cycle of waits blocks.
TEST_P(GroupsTest, OverlapInTime) {
  expect_success(run_ranks(GetParam(), [](Communicator& world) {
    std::mt19937 random(static_cast<unsigned>(world.rank()));
    const int width = std::max(1, world.size() / 2);
    const auto row = world.split(world.rank() / width, 0);
    const auto column = world.split(world.rank() % width, 0);
    Communicator* const groups[] = {&world, row.get(), column.get()};
    for (int repeat = 0; repeat < 30; ++repeat) {
      struct Flight {
        Communicator* group;
        Work work;
        std::vector<std::int32_t> data;
      };
      std::vector<Flight> flights;
      // In a group, all ranks submit in the same order. Between groups, each rank has another
      // order.
      std::vector<int> order{0, 1, 2, 0, 1, 2};
      std::shuffle(order.begin(), order.end(), random);
      for (const int which : order) {
        Communicator& group = *groups[which];
        const std::size_t count = repeat % 3 == 0 ? 100'000 : 10 + static_cast<std::size_t>(which);
        flights.push_back({&group, {}, std::vector<std::int32_t>(count, 1)});
        auto& data = flights.back().data;
        flights.back().work =
            group.submit(all_reduce(ReduceOp::Sum, DType::I32, data.data(), data.data(), count));
      }
      std::shuffle(flights.begin(), flights.end(), random);
      for (Flight& each : flights) {
        each.group->wait(each.work, kSeconds);
        require(each.data.front() == each.group->size() && each.data.back() == each.group->size(),
                "wrong sum");
      }
    }
  }));
}

// A hundred groups, only a few open at a time, need less memory than their sum. Memory that
// the world allocated is shared memory of its groups too.
TEST_P(GroupsTest, LeaveNothingAfterManySplits) {
  expect_success(run_ranks(GetParam(), [](Communicator& world) {
    const auto most = [&] {
      for (std::size_t mib = 250; mib > 0; --mib) {
        try {
          world.release(world.allocate(mib << 20));
          return mib;
        } catch (const Error&) {
        }
      }
      return std::size_t{0};
    };
    const std::size_t before = most();
    const SharedBlock block = world.allocate(1000 * sizeof(float));
    auto* data = static_cast<float*>(block.data);
    for (int i = 0; i < 100; ++i) {
      const auto group = world.split(world.rank() % (1 + i % 3), i);
      std::fill_n(data, 1000, 1.0f);
      group->wait(group->submit(all_reduce(ReduceOp::Sum, DType::F32, data, data, 1000)), kSeconds);
      require(data[999] == static_cast<float>(group->size()), "wrong sum");
      if (group->size() > 1) {
        std::vector<char> bytes(200'000);
        const int peer = (group->rank() + 1) % group->size();
        const int other = (group->rank() + group->size() - 1) % group->size();
        Collective send;
        send.kind = Kind::Send;
        send.count = bytes.size();
        send.root = peer;
        send.source = bytes.data();
        Collective receive = send;
        std::vector<char> got(bytes.size());
        receive.kind = Kind::Receive;
        receive.root = other;
        receive.destination = got.data();
        const Work works[] = {group->submit(send), group->submit(receive)};
        for (const Work work : works) group->wait(work, kSeconds);
      }
    }
    world.release(block);
    world.wait(world.submit(barrier()), kSeconds);  // all ranks have left the last group
    world.split(-1, 0);
    const auto last = world.split(0, 0);  // frees the groups that were left
    last->close();
    world.wait(world.submit(barrier()), kSeconds);
    world.split(0, 0)->close();
    world.wait(world.submit(barrier()), kSeconds);
    require(most() + 10 >= before, "a group's memory is left");
  }));
}

// Many programs in turn, each with a long text for the message of a mismatch. All texts together
// are larger than a segment (256 MiB).
void run_programs(Communicator& group, int programs) {
  const std::string text(std::size_t{8} << 20, 'x');
  for (int number = 1; number <= programs; ++number) {
    const auto computation = static_cast<std::uint64_t>(number);
    const HeldComputation held(group.computations(), computation);
    ProgramIdentity program;
    program.hash = computation;
    program.text = text.c_str();
    program.computation = computation;
    std::int64_t value = 1;
    for (int call = 0; call < 100; ++call) {
      Collective sum = all_reduce(ReduceOp::Sum, DType::I64, &value, &value, 1);
      if (call == 0) sum.program = &program;
      group.wait(group.submit(sum), kSeconds);
    }
  }
}

TEST(Groups, TextsOfDeletedProgramsTakeNoMemory) {
  expect_success(run_ranks(2, [](Communicator& world) {
    run_programs(world, 60);
    world.release(world.allocate(std::size_t{128} << 20));
  }));
}

TEST(Groups, TextsOfProgramsAreReleasedWithTheirGroup) {
  expect_success(run_ranks(2, [](Communicator& world) {
    for (int round = 0; round < 40; ++round) run_programs(*world.split(0, world.rank()), 1);
    Collective barrier;
    world.wait(world.submit(barrier), kSeconds);
    world.release(world.allocate(std::size_t{128} << 20));
  }));
}

TEST(Groups, AMismatchNamesRanksOfTheWorldAndTheGroup) {
  const auto outcomes = run_ranks(4, [](Communicator& world) {
    const auto group = world.split(world.rank() % 2, 0);
    if (world.rank() % 2 == 1) {
      std::int32_t data[4] = {};
      const std::uint64_t count = world.rank() == 3 ? 3 : 4;
      group->wait(group->submit(all_reduce(ReduceOp::Sum, DType::I32, data, data, count, "g.py:1")),
                  kSeconds);
    } else {
      check_sum(*group, 1, 2, 10);
    }
    world.wait(world.submit(barrier()), kSeconds);
  });
  for (const Outcome& each : outcomes) {
    EXPECT_EQ(each.kind, ErrorKind::CollectiveMismatch) << each.message;
    EXPECT_NE(each.message.find("rank 1: all_reduce(sum) of 4"), std::string::npos) << each.message;
    EXPECT_NE(each.message.find("rank 3: all_reduce(sum) of 3"), std::string::npos) << each.message;
    EXPECT_NE(each.message.find("in the group of rank 1, rank 3"), std::string::npos)
        << each.message;
  }
}

TEST(Groups, AFailureInOneGroupClosesAll) {
  const auto start = Clock::now();
  const auto outcomes = run_ranks(3, [](Communicator& world) {
    const auto pair = world.split(world.rank() == 2 ? 1 : 0, 0);
    if (world.rank() == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      pair->abort("ValueError: in the pair");
      check_sum(world, 1, 3, 1);
    }
    (world.rank() == 1 ? *pair : world)
        .wait((world.rank() == 1 ? *pair : world).submit(barrier()), kSeconds);
  });
  EXPECT_LT(seconds_since(start), 2);
  EXPECT_EQ(outcomes[0].kind, ErrorKind::GroupClosed) << outcomes[0].message;
  for (const std::size_t r : {1, 2}) {
    EXPECT_EQ(outcomes[r].kind, ErrorKind::RemoteRank) << outcomes[r].message;
    EXPECT_NE(outcomes[r].message.find("rank 0 failed"), std::string::npos) << outcomes[r].message;
    EXPECT_NE(outcomes[r].message.find("ValueError: in the pair"), std::string::npos);
  }
}

TEST(Groups, ATimeoutNamesTheRankInTheWorld) {
  const auto outcomes = run_ranks(4, [](Communicator& world) {
    const auto group = world.split(world.rank() % 2, 0);
    if (world.rank() != 1) return std::this_thread::sleep_for(std::chrono::milliseconds(500));
    group->wait(group->submit(barrier("g.py:9")), 0.2);
  });
  EXPECT_EQ(outcomes[1].kind, ErrorKind::CollectiveTimeout);
  EXPECT_EQ(
      outcomes[1].message,
      "barrier at g.py:9 in the group of rank 1, rank 3: rank 3 did not arrive within 0.2 s." +
          in_no_collective(3));
}

TEST(Groups, OneThreadDrivesAllGroupsOfAWorld) {
  expect_success(run_ranks(2, [](Communicator& world) {
    const auto group = world.split(0, 0);
    std::int64_t value = 1;
    const Work work = world.submit(all_reduce(ReduceOp::Sum, DType::I64, &value, &value, 1));
    if (world.rank() == 0) {
      std::thread other([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        const Outcome outcome = outcome_of([&] { group->submit(barrier()); });
        EXPECT_EQ(outcome.kind, ErrorKind::Busy) << outcome.message;
      });
      Collective late = barrier();
      world.wait(work, kSeconds);
      world.wait(world.submit(late), kSeconds);
      other.join();
    } else {
      world.wait(work, kSeconds);
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      world.wait(world.submit(barrier()), kSeconds);
    }
    group->wait(group->submit(barrier()), kSeconds);
  }));
}

// ---- sends and receives

Collective transfer(Kind kind, int peer, void* data, std::uint64_t count, int tag = 0,
                    const char* site = "p2p.py:1") {
  Collective call;
  call.kind = kind;
  call.dtype = DType::I32;
  call.count = count;
  call.root = peer;
  call.tag = tag;
  if (kind == Kind::Send)
    call.source = data;
  else
    call.destination = data;
  call.site = site;
  return call;
}

// Every rank sends messages of all sizes to every other rank, from private and shared memory. It
// waits for sends and receives in its own order, with a collective between them.
TEST_P(GroupsTest, SendsArriveInOrderWhateverIsWaitedForFirst) {
  expect_success(run_ranks(GetParam(), [](Communicator& world) {
    std::mt19937 random(77u + static_cast<unsigned>(world.rank()));
    const std::size_t sizes[] = {0, 1,      256, 257, 5000, 40'000, 100'001,
                                 3, 40'000, 2,   1,   7,    9,      70'000};
    struct Flight {
      Work work;
      std::vector<std::int32_t> own;
      SharedBlock block;
      std::int32_t* at = nullptr;
      std::size_t count = 0;
      std::int32_t want = 0;
      bool receives = false;
    };
    for (int repeat = 0; repeat < 3; ++repeat) {
      std::vector<std::unique_ptr<Flight>> flights;
      int tag = 0;
      for (const std::size_t count : sizes) {
        ++tag;
        for (int peer = 0; peer < world.size(); ++peer) {
          if (peer == world.rank()) continue;
          for (const Kind kind : {Kind::Send, Kind::Receive}) {
            auto flight = std::make_unique<Flight>();
            flight->count = count;
            flight->receives = kind == Kind::Receive;
            const int from = flight->receives ? peer : world.rank();
            const int to = flight->receives ? world.rank() : peer;
            flight->want = from * 1000 + to * 10 + tag;
            if (random() % 2 == 0) {
              flight->block = world.allocate(count * sizeof(std::int32_t));
              flight->at = static_cast<std::int32_t*>(flight->block.data);
            } else {
              flight->own.resize(count + 1);
              flight->at = flight->own.data();
            }
            std::fill_n(flight->at, count, flight->receives ? -1 : flight->want);
            flight->work = world.submit(transfer(kind, peer, flight->at, count, tag));
            flights.push_back(std::move(flight));
          }
        }
      }
      std::int64_t value = 1;
      const Work sum = world.submit(all_reduce(ReduceOp::Sum, DType::I64, &value, &value, 1));
      std::shuffle(flights.begin(), flights.end(), random);
      for (const auto& each : flights) {
        world.wait(each->work, kSeconds);
        for (std::size_t i = 0; i < each->count; ++i)
          require(each->at[i] == each->want, "wrong element");
        // The buffer may be overwritten now.
        if (!each->receives) std::fill_n(each->at, each->count, -7);
        if (each->block.data != nullptr) world.release(each->block);
      }
      world.wait(sum, kSeconds);
      require(value == world.size(), "wrong sum");
    }
  }));
}

TEST(SendReceive, AMismatchIsRaisedOnBothSides) {
  struct Change {
    const char* name;
    std::function<void(Collective&)> change;
    const char* part;
  };
  const Change changes[] = {
      {"count", [](Collective& call) { call.count = 4; }, "4 int32"},
      {"dtype", [](Collective& call) { call.dtype = DType::F32; }, "float32"},
      {"tag", [](Collective& call) { call.tag = 9; }, "tag 9"},
  };
  for (const Change& each : changes) {
    const auto outcomes = run_ranks(3, [&](Communicator& world) {
      std::int32_t data[8] = {};
      if (world.rank() == 1) {
        world.wait(world.submit(transfer(Kind::Send, 2, data, 5, 3, "s.py:1")), kSeconds);
        world.wait(world.submit(transfer(Kind::Receive, 2, data, 5, 3, "s.py:2")), kSeconds);
      } else if (world.rank() == 2) {
        Collective receive = transfer(Kind::Receive, 1, data, 5, 3, "r.py:1");
        each.change(receive);
        world.wait(world.submit(receive), kSeconds);
      }
    });
    EXPECT_FALSE(outcomes[0].kind) << outcomes[0].message;
    for (const std::size_t r : {1, 2}) {
      EXPECT_EQ(outcomes[r].kind, ErrorKind::CollectiveMismatch) << outcomes[r].message;
      for (const char* part :
           {"rank 1: send of 5 int32", "s.py:1", "rank 2: recv", "r.py:1", each.part})
        EXPECT_NE(outcomes[r].message.find(part), std::string::npos) << outcomes[r].message;
    }
  }
}

TEST(SendReceive, AMissingPeerIsNamed) {
  const auto outcomes = run_ranks(2, [](Communicator& world) {
    std::int32_t value = 0;
    if (world.rank() == 1) return std::this_thread::sleep_for(std::chrono::milliseconds(400));
    world.wait(world.submit(transfer(Kind::Receive, 1, &value, 1)), 0.2);
  });
  EXPECT_EQ(outcomes[0].kind, ErrorKind::CollectiveTimeout);
  EXPECT_EQ(outcomes[0].message,
            "recv of 1 int32 from rank 1 at p2p.py:1: rank 1 did not arrive within 0.2 s." +
                in_no_collective(1));
}

TEST(SendReceive, MessagesOfARankThatHasLeftArrive) {
  for (int repeat = 0; repeat < 20; ++repeat) {
    auto ranks = shm::make_thread_ranks(2);
    const auto outcomes = run_ranks(ranks, [](Communicator& world) {
      std::vector<std::int32_t> data(100, 5);
      if (world.rank() == 1) {
        world.wait(world.submit(transfer(Kind::Send, 0, data.data(), 100)), kSeconds);
        return world.close();
      }
      std::fill(data.begin(), data.end(), 0);
      world.wait(world.submit(transfer(Kind::Receive, 1, data.data(), 100)), kSeconds);
      require(data[99] == 5, "wrong element");
      world.wait(world.submit(transfer(Kind::Receive, 1, data.data(), 100)), kSeconds);
    });
    EXPECT_FALSE(outcomes[1].kind) << outcomes[1].message;
    EXPECT_EQ(outcomes[0].kind, ErrorKind::RankLost) << outcomes[0].message;
    EXPECT_NE(outcomes[0].message.find("rank 1 has left the job"), std::string::npos);
  }
}

// ---- waiting for so long

TEST(WaitFor, ReturnsInTimeWithoutAnError) {
  expect_success(run_ranks(3, [](Communicator& world) {
    if (world.rank() == 2) std::this_thread::sleep_for(std::chrono::milliseconds(400));
    std::int64_t value = 1;
    const Work work = world.submit(all_reduce(ReduceOp::Sum, DType::I64, &value, &value, 1));
    if (world.rank() != 2) {
      for (const double seconds : {0.0, 0.00001, 0.05}) {
        const auto start = Clock::now();
        require(!world.wait_for(work, seconds), "nobody has come yet");
        require(seconds_since(start) >= seconds, "it came back too early");
      }
    }
    require(world.wait_for(work, kSeconds) && value == 3, "wrong sum");
  }));
}

INSTANTIATE_TEST_SUITE_P(Ranks, GroupsTest, testing::Values(2, 3, 4, 8),
                         [](const auto& info) { return std::to_string(info.param); });

}  // namespace
}  // namespace ngd::comm
