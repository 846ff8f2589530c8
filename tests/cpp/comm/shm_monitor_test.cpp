// SPDX-License-Identifier: Apache-2.0
// Tests several threads of one rank: one waits for its peers, and the others use the group.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <random>

#include "comm/retry.hpp"
#include "ranks.hpp"

namespace ngd::comm {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

constexpr double kPrompt = 2;  // in seconds; kSeconds is the deadline for peers

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

void expect_success(const std::vector<Outcome>& outcomes) {
  for (std::size_t r = 0; r < outcomes.size(); ++r)
    ASSERT_FALSE(outcomes[r].kind) << "rank " << r << ": " << outcomes[r].message;
}

void expect_says(const Outcome& outcome, ErrorKind kind, const std::string& part) {
  ASSERT_EQ(outcome.kind, kind) << outcome.message;
  EXPECT_NE(outcome.message.find(part), std::string::npos) << outcome.message;
}

void wait_for_barrier(Communicator& group) { group.wait(group.submit(barrier()), kSeconds); }

// Rank 0 waits in `group` while its second thread does something. The other ranks do not arrive.
Outcome waiting_rank(Communicator& group, const std::function<void()>& meanwhile) {
  std::atomic<bool> waits{false};
  std::thread second([&] {
    while (!waits) std::this_thread::yield();
    std::this_thread::sleep_for(Milliseconds(100));  // time to spin, to yield, and to sleep
    meanwhile();
  });
  const Outcome outcome = outcome_of([&] {
    const Work work = group.submit(barrier("wait.py:1"));
    waits = true;
    group.wait(work, kSeconds);
  });
  second.join();
  return outcome;
}

TEST(Close, EndsTheWaitOfAnotherThreadAndIsReported) {
  const auto start = Clock::now();
  auto ranks = shm::make_thread_ranks(2);
  const auto outcomes = run_ranks(ranks, [](Communicator& group) {
    if (group.rank() == 0)
      return expect_says(
          waiting_rank(group, [&] { group.close(); }), ErrorKind::GroupClosed,
          "barrier: this group was closed by close() or ngd.shutdown() while this rank");
    std::this_thread::sleep_for(Milliseconds(300));
    wait_for_barrier(group);  // rank 0 has entered it
    wait_for_barrier(group);
  });
  EXPECT_LT(seconds_since(start), kPrompt);
  EXPECT_FALSE(outcomes[0].kind) << outcomes[0].message;
  expect_says(outcomes[1], ErrorKind::RankLost, "rank 0 has left the job");
  expect_says(
      outcome_of([&] { wait_for_barrier(*ranks[0]); }), ErrorKind::GroupClosed,
      ": this group was closed by close() or ngd.shutdown(). ngd.init() returns an open world");
}

TEST(Close, OfTheWorldEndsAWaitInASmallerGroup) {
  const auto start = Clock::now();
  expect_success(run_ranks(2, [](Communicator& world) {
    const auto group = world.split(0, 0);
    if (world.rank() == 0)
      expect_says(waiting_rank(*group, [&] { world.close(); }), ErrorKind::GroupClosed,
                  "ngd.shutdown() while this rank");
    else
      std::this_thread::sleep_for(Milliseconds(300));
  }));
  EXPECT_LT(seconds_since(start), kPrompt);
}

TEST(Close, EndsTheWaitForATransfer) {
  const auto start = Clock::now();
  expect_success(run_ranks(2, [](Communicator& world) {
    if (world.rank() == 1) return std::this_thread::sleep_for(Milliseconds(300));
    std::int32_t data[2];
    Collective receive = broadcast(DType::I32, nullptr, data, 2, 1);
    receive.kind = Kind::Receive;
    std::atomic<bool> waits{false};
    std::thread second([&] {
      while (!waits) std::this_thread::yield();
      world.close();
    });
    const Outcome outcome = outcome_of([&] {
      const Work work = world.submit(receive);
      waits = true;
      world.wait(work, kSeconds);
    });
    second.join();
    ASSERT_EQ(outcome.kind, ErrorKind::GroupClosed) << outcome.message;
  }));
  EXPECT_LT(seconds_since(start), kPrompt);
}

TEST(Close, OfAnotherGroupDisturbsNoWait) {
  expect_success(run_ranks(2, [](Communicator& world) {
    auto group = world.split(0, 0);
    if (world.rank() == 1) {
      std::this_thread::sleep_for(Milliseconds(300));
      wait_for_barrier(world);
    } else {
      const Outcome outcome = waiting_rank(world, [&] { group.reset(); });
      require(!outcome.kind, outcome.message);
    }
  }));
}

TEST(Abort, EndsTheWaitOfAnotherThread) {
  const auto start = Clock::now();
  const auto outcomes = run_ranks(2, [](Communicator& world) {
    const auto group = world.split(0, 0);
    if (world.rank() == 1) return wait_for_barrier(*group);
    expect_says(waiting_rank(world, [&] { group->abort("ValueError: 17"); }),
                ErrorKind::GroupClosed, "ValueError: 17");
  });
  EXPECT_LT(seconds_since(start), kPrompt);
  EXPECT_FALSE(outcomes[0].kind) << outcomes[0].message;
  expect_says(outcomes[1], ErrorKind::RemoteRank, "ValueError: 17");
}

// The actions of a signal handler or a finalizer, on the thread that waits.
TEST(Interrupt, MayCloseTheGroupAndDropOthers) {
  const auto start = Clock::now();
  const auto outcomes = run_ranks(2, [](Communicator& world) {
    auto group = world.split(0, 0);
    if (world.rank() == 1) return wait_for_barrier(*group);
    Outcome inner;
    world.set_interrupt([&] {
      inner = outcome_of([&] { world.submit(barrier()); });
      world.release(world.allocate(1 << 20));
      require(!world.stats().empty(), "no statistics");
      group.reset();
      world.close();
      return false;
    });
    const Outcome outcome = outcome_of([&] { wait_for_barrier(world); });
    expect_says(outcome, ErrorKind::GroupClosed, "ngd.shutdown() while this rank");
    ASSERT_EQ(inner.kind, ErrorKind::Busy) << inner.message;
  });
  EXPECT_LT(seconds_since(start), kPrompt);
  EXPECT_FALSE(outcomes[0].kind) << outcomes[0].message;
  expect_says(outcomes[1], ErrorKind::RankLost, "rank 0 has left the group");
}

TEST(Interrupt, ContinuesIfNothingHasHappened) {
  expect_success(run_ranks(2, [](Communicator& world) {
    if (world.rank() == 1) std::this_thread::sleep_for(Milliseconds(300));
    int asked = 0;
    world.set_interrupt([&] {
      ++asked;
      world.release(world.allocate(100));
      return false;
    });
    wait_for_barrier(world);
    require(world.rank() == 1 || asked > 1, "was not asked");
  }));
}

// One thread per rank runs collectives of all sizes in two groups. Two other threads do everything
// that is allowed at the same time.
TEST(Housekeeping, RunsDuringCollectives) {
  for (const int size : {2, 3})
    expect_success(run_ranks(size, [](Communicator& world) {
      const auto group = world.split(0, 0);
      std::atomic<bool> over{false};
      std::vector<std::thread> others;
      for (int i = 0; i < 2; ++i)
        others.emplace_back([&, i] {
          std::mt19937 random(static_cast<unsigned>(i));
          while (!over) {
            const SharedBlock block = world.allocate(random() % 100'000 + 1);
            std::memset(block.data, i, block.bytes);
            for (const CallStats& each : (random() % 2 ? world : *group).stats())
              require(each.calls < 1'000'000, "no number of calls");
            world.release(block);
            std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
          }
        });
      for (int round = 0; round < 60; ++round) {
        Communicator& ranks = round % 3 == 0 ? *group : world;
        const std::string site = "round.py:" + std::to_string(round);
        std::vector<std::int64_t> data(round % 4 == 0 ? 100'000 : 10, world.rank() + round);
        ranks.wait(ranks.submit(all_reduce(ReduceOp::Sum, DType::I64, data.data(), data.data(),
                                           data.size(), site.c_str())),
                   kSeconds);
        const std::int64_t sum = world.size() * (world.size() - 1) / 2 + round * world.size();
        require(data.front() == sum && data.back() == sum, "a wrong sum");
        if (round % 10 == 5) world.split(0, 0);  // closes the new group too
      }
      over = true;
      for (std::thread& other : others) other.join();
    }));
}

// Second threads that call the group get Busy, and disturb nothing.
TEST(Busy, IsTheOnlyErrorOfASecondCaller) {
  expect_success(run_ranks(2, [](Communicator& world) {
    std::atomic<bool> over{false};
    std::atomic<std::uint64_t> last{0};
    std::thread other([&] {
      while (!over) {
        const Outcome outcome = outcome_of([&] {
          if (last > 0) world.done(Work{last});
        });
        require(!outcome.kind || outcome.kind == ErrorKind::Busy, outcome.message);
        std::this_thread::yield();
      }
    });
    for (std::int64_t round = 0; round < 200; ++round) {
      std::int64_t value = round;
      const Collective call = all_reduce(ReduceOp::Sum, DType::I64, &value, &value, 1);
      const Work work = submit_retrying(world, call, kSeconds);
      last = work.sequence;
      wait_retrying(world, work, kSeconds);
      require(value == 2 * round, "a wrong sum");
    }
    over = true;
    other.join();
  }));
}

TEST(InTurn, HasADeadlineThatClosesTheGroup) {
  const auto start = Clock::now();
  const auto outcomes = run_ranks(2, [](Communicator& world) {
    if (world.rank() == 1) return std::this_thread::sleep_for(Milliseconds(1500));
    std::atomic<bool> waits{false};
    Outcome second;
    std::thread other([&] {
      const Work work = world.submit(barrier());
      waits = true;
      second = outcome_of([&] { world.wait(work, kSeconds); });
    });
    while (!waits) std::this_thread::yield();
    std::this_thread::sleep_for(Milliseconds(50));
    const Outcome first = outcome_of([&] { wait_retrying(world, Work{1}, 0.3); });
    other.join();
    expect_says(first, ErrorKind::CollectiveTimeout,
                "another thread of this process has used the group for 0.3 s");
    expect_says(second, ErrorKind::GroupClosed, "another thread of this process");
  });
  expect_success(outcomes);
  EXPECT_LT(seconds_since(start), 10);
}

TEST(InTurn, IsInterrupted) {
  expect_success(run_ranks(2, [](Communicator& world) {
    if (world.rank() == 1) return std::this_thread::sleep_for(Milliseconds(800));
    const auto caller = std::this_thread::get_id();
    world.set_interrupt([=] { return std::this_thread::get_id() == caller; });
    std::atomic<bool> waits{false};
    std::thread other([&] {
      const Work work = world.submit(barrier());
      waits = true;
      outcome_of([&] { world.wait(work, kSeconds); });
    });
    while (!waits) std::this_thread::yield();
    std::this_thread::sleep_for(Milliseconds(50));
    const Outcome outcome = outcome_of([&] { wait_retrying(world, Work{1}, kSeconds); });
    other.join();
    ASSERT_EQ(outcome.kind, ErrorKind::Interrupted) << outcome.message;
  }));
}

// ---- any number of pending collectives

Collective transfer(Kind kind, std::int64_t* data, int peer) {
  Collective collective;
  collective.kind = kind;
  collective.dtype = DType::I64;
  collective.count = 1;
  collective.root = peer;
  collective.source = collective.destination = data;
  return collective;
}

TEST(Backlog, LetsASendOvertakeAnyNumberOfCollectives) {
  const auto start = Clock::now();
  expect_success(run_ranks(2, [](Communicator& world) {
    constexpr std::size_t kMany = 1000;
    std::vector<std::int64_t> data(kMany);
    std::vector<Work> works;
    std::int64_t message = 17;
    const auto submit_all = [&] {
      for (std::size_t i = 0; i < kMany; ++i) {
        data[i] = static_cast<std::int64_t>(i) + world.rank();
        const std::string site = "freed.py:" + std::to_string(i);
        works.push_back(world.submit(
            all_reduce(ReduceOp::Sum, DType::I64, &data[i], &data[i], 1, site.c_str())));
      }
    };
    if (world.rank() == 0) {
      submit_all();
      world.wait(world.submit(transfer(Kind::Send, &message, 1)), kSeconds);
    } else {
      message = 0;
      world.wait(world.submit(transfer(Kind::Receive, &message, 0)), kSeconds);
      require(message == 17, "a wrong message");
      submit_all();
    }
    std::mt19937 random(static_cast<unsigned>(world.rank()));
    std::shuffle(works.begin(), works.end(), random);
    for (const Work work : works) world.wait(work, kSeconds);
    for (std::size_t i = 0; i < kMany; ++i)
      require(data[i] == 2 * static_cast<std::int64_t>(i) + 1, "a wrong sum");
    std::uint64_t calls = 0;
    for (const CallStats& each : world.stats())
      if (each.kind == Kind::AllReduce) calls += each.calls;
    require(calls == kMany, "not all calls are counted");
  }));
  EXPECT_LT(seconds_since(start), 30);
}

// Arguments of submit(), except the data, may be freed as soon as it returns.
TEST(Backlog, KeepsCountsAndPrograms) {
  expect_success(run_ranks(3, [](Communicator& world) {
    constexpr std::size_t kMany = 200;
    const auto me = static_cast<std::size_t>(world.rank());
    std::vector<std::vector<std::int32_t>> given(kMany), got(kMany);
    std::vector<Work> works;
    for (std::size_t i = 0; i < kMany; ++i) {
      std::vector<std::uint64_t> counts, receive_counts;
      for (std::size_t r = 0; r < 3; ++r) {
        counts.push_back((i + me + 2 * r) % 5);
        receive_counts.push_back((i + r + 2 * me) % 5);
      }
      const std::size_t sends = counts[0] + counts[1] + counts[2];
      given[i].assign(sends, static_cast<std::int32_t>(100 * i + me));
      got[i].resize(receive_counts[0] + receive_counts[1] + receive_counts[2] + 1, -1);
      Collective collective;
      collective.kind = Kind::AllToAll;
      collective.dtype = DType::I32;
      collective.counts = counts.data();
      collective.receive_counts = receive_counts.data();
      collective.source = given[i].data();
      collective.destination = got[i].data();
      const std::string text = "all_to_all at freed.py:1\n";
      const ProgramIdentity program{i + 1, text.c_str()};
      collective.program = &program;
      works.push_back(world.submit(collective));
    }
    for (auto work = works.rbegin(); work != works.rend(); ++work) world.wait(*work, kSeconds);
    for (std::size_t i = 0; i < kMany; ++i) {
      std::vector<std::int32_t> want;
      for (std::size_t r = 0; r < 3; ++r)
        want.insert(want.end(), (i + r + 2 * me) % 5, static_cast<std::int32_t>(100 * i + r));
      want.push_back(-1);
      require(got[i] == want, "wrong blocks");
    }
  }));
}

TEST(Backlog, AMismatchInItIsDetected) {
  const auto outcomes = run_ranks(2, [](Communicator& world) {
    std::int32_t data = 0;
    Work last;
    for (int i = 0; i < 150; ++i) {
      const bool odd = i == 120 && world.rank() == 1;
      last = world.submit(all_reduce(odd ? ReduceOp::Max : ReduceOp::Sum, DType::I32, &data, &data,
                                     1, odd ? "odd.py:1" : "even.py:1"));
    }
    world.wait(last, kSeconds);
  });
  for (const Outcome& outcome : outcomes)
    expect_says(outcome, ErrorKind::CollectiveMismatch, "odd.py:1");
}

TEST(Backlog, ALateRankIsNamedWithTheCollectiveThatItLacks) {
  const auto outcomes = run_ranks(2, [](Communicator& world) {
    if (world.rank() == 1) return std::this_thread::sleep_for(Milliseconds(900));
    Work last;
    for (int i = 0; i < 150; ++i)
      last = world.submit(barrier(("site.py:" + std::to_string(i)).c_str()));
    world.wait(last, 0.4);
  });
  expect_says(outcomes[0], ErrorKind::CollectiveTimeout,
              "barrier at site.py:0: rank 1 did not arrive within 0.4 s.\n");
}

TEST(Backlog, ARankThatLeavesIsDetected) {
  const auto start = Clock::now();
  const auto outcomes = run_ranks(2, [](Communicator& world) {
    std::vector<Work> works;
    const int submitted = world.rank() == 0 ? 151 : 150;  // rank 1 does not join the last one
    for (int i = 0; i < submitted; ++i) works.push_back(world.submit(barrier()));
    if (world.rank() == 1) {
      world.wait(works[40], kSeconds);
      return world.close();
    }
    world.wait(works.back(), kSeconds);
  });
  EXPECT_LT(seconds_since(start), kPrompt);
  EXPECT_FALSE(outcomes[1].kind) << outcomes[1].message;
  expect_says(outcomes[0], ErrorKind::RankLost, "rank 1 has left the job");
}

}  // namespace
}  // namespace ngd::comm
