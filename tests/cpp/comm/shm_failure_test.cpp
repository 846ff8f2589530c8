// SPDX-License-Identifier: Apache-2.0
// Tests failures between ranks, on threads: every rank gets the right error, and soon.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>

#include "ranks.hpp"

namespace ngd::comm {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void expect_all(const std::vector<Outcome>& outcomes, ErrorKind kind,
                const std::vector<std::string>& parts) {
  for (std::size_t r = 0; r < outcomes.size(); ++r) {
    ASSERT_EQ(outcomes[r].kind, kind) << "rank " << r << ": " << outcomes[r].message;
    for (const std::string& part : parts)
      EXPECT_NE(outcomes[r].message.find(part), std::string::npos)
          << "rank " << r << ": expected \"" << part << "\" in: " << outcomes[r].message;
  }
}

// Two collectives that differ in one field, and the words that the message must have about each.
struct Difference {
  const char* name;
  std::function<void(Collective&)> change;
  const char* normal;
  const char* changed;
};

void PrintTo(const Difference& difference, std::ostream* out) { *out << difference.name; }

const Difference kDifferences[] = {
    {"kind", [](Collective& c) { c.kind = Kind::Broadcast; }, "all_reduce(sum) of 512 float32",
     "broadcast of 512 float32"},
    {"op", [](Collective& c) { c.op = ReduceOp::Mean; }, "all_reduce(sum)", "all_reduce(mean)"},
    {"dtype", [](Collective& c) { c.dtype = DType::I32; }, "512 float32", "512 int32"},
    {"count", [](Collective& c) { c.count = 511; }, "512 float32", "511 float32"},
    {"algorithm", [](Collective& c) { c.algorithm = Algorithm::Ring; }, "flat", "ring"},
    {"barrier", [](Collective& c) { c.kind = Kind::Barrier; }, "all_reduce(sum)", "barrier"},
};

class MismatchTest : public testing::TestWithParam<Difference> {};

TEST_P(MismatchTest, IsRaisedByAllRanksWithBothSites) {
  for (const int size : {2, 3, 4})
    for (int odd = 0; odd < size; ++odd) {
      const auto outcomes = run_ranks(size, [&](Communicator& group) {
        std::vector<float> data(512);
        Collective collective =
            all_reduce(ReduceOp::Sum, DType::F32, data.data(), data.data(), 512, "a.py:3");
        collective.algorithm = Algorithm::Flat;
        if (group.rank() == odd) {
          GetParam().change(collective);
          collective.site = "b.py:9";
        }
        group.wait(group.submit(collective), kSeconds);
      });
      expect_all(outcomes, ErrorKind::CollectiveMismatch,
                 {"rank " + std::to_string(odd), "a.py:3", "b.py:9", GetParam().normal,
                  GetParam().changed});
    }
}

INSTANTIATE_TEST_SUITE_P(Fields, MismatchTest, testing::ValuesIn(kDifferences),
                         [](const auto& info) { return std::string(info.param.name); });

// A rank with a corrupted record must not make another rank fail.
TEST(Records, AnImpossibleLengthIsTruncated) {
  const auto record = std::make_unique<shm::RankRecord>();
  std::memset(record->error_text, 'x', sizeof record->error_text);
  record->error_length = 0xffffffff;
  EXPECT_EQ(shm::error_text_of(*record).size(), sizeof record->error_text);
  record->error_length = 3;
  EXPECT_EQ(shm::error_text_of(*record), "xxx");
}

// Transfers between hosts use this to find the rank that has stopped.
TEST(Waits, NameTheRankThatDelaysThem) {
  auto ranks = shm::make_thread_ranks(3);
  std::vector<float> data(100'000);
  const auto sum =
      all_reduce(ReduceOp::Sum, DType::F32, data.data(), data.data(), data.size(), "a.py:1");
  const Work mine = ranks[0]->submit(sum);
  std::vector<float> others(data.size());
  ranks[2]->submit(
      all_reduce(ReduceOp::Sum, DType::F32, others.data(), others.data(), others.size(), "a.py:1"));
  EXPECT_EQ(ranks[0]->missing(mine), std::vector<int>{1});
  EXPECT_EQ(ranks[0]->awaited_by(1), -1);
  ranks[1]->note_awaited(7);
  EXPECT_EQ(ranks[0]->awaited_by(1), 7);
  ranks[1]->note_awaited(-1);
  EXPECT_EQ(ranks[0]->awaited_by(1), -1);
}

// The message has the deadline of the caller, even if less is left of it.
TEST(Waits, StateTheWholeDeadline) {
  auto ranks = shm::make_thread_ranks(2);
  const Work barrier = ranks[0]->submit(Collective{});
  const auto start = Clock::now();
  const Outcome outcome =
      outcome_of([&] { static_cast<void>(ranks[0]->try_wait(barrier, {30, 29.9})); });
  EXPECT_LT(seconds_since(start), 10);
  EXPECT_EQ(outcome.kind, ErrorKind::CollectiveTimeout);
  EXPECT_EQ(outcome.message.find("barrier: rank 1 did not arrive within 30 s.\n"), 0u)
      << outcome.message;
}

TEST(Threads, ASecondOneGetsBusyAndDisturbsNothing) {
  std::atomic<bool> refused{false};
  const auto outcomes = run_ranks(2, [&](Communicator& group) {
    float value = 1;
    const Collective sum = all_reduce(ReduceOp::Sum, DType::F32, &value, &value, 1);
    if (group.rank() == 0) {
      const Work work = group.submit(sum);
      std::thread second([&] {
        while (!refused) {
          const Outcome outcome = outcome_of([&] { group.done(work); });
          if (outcome.kind) {
            EXPECT_EQ(outcome.kind, ErrorKind::Busy) << outcome.message;
            refused = true;
          }
        }
      });
      for (bool waited = false; !waited;)  // the other thread may also be inside done()
        waited = !outcome_of([&] { group.wait(work, kSeconds); }).kind;
      second.join();
    } else {
      while (!refused) std::this_thread::yield();
      group.wait(group.submit(sum), kSeconds);
    }
    EXPECT_EQ(value, 2);
  });
  for (const Outcome& outcome : outcomes) EXPECT_FALSE(outcome.kind) << outcome.message;
}

TEST(Mismatch, OfRootsNamesBothSides) {
  const auto outcomes = run_ranks(2, [](Communicator& group) {
    double value = 0;
    group.wait(group.submit(broadcast(DType::F64, &value, &value, 1, group.rank())), kSeconds);
  });
  expect_all(outcomes, ErrorKind::CollectiveMismatch, {"root 0", "root 1"});
}

TEST(Mismatch, OfProgramsShowsTheFirstLineThatDiffers) {
  const auto outcomes = run_ranks(3, [](Communicator& group) {
    const bool odd = group.rank() == 2;
    const ProgramIdentity program{odd ? 7u : 8u, odd ? "all_reduce(mean) of 5 float32 at x.py:1\n"
                                                       "all_reduce(mean) of 6 float32 at x.py:2\n"
                                                     : "all_reduce(mean) of 5 float32 at y.py:1\n"
                                                       "all_reduce(mean) of 7 float32 at y.py:2\n"};
    float data[5] = {};
    Collective collective = all_reduce(ReduceOp::Mean, DType::F32, data, data, 5);
    collective.program = &program;
    group.wait(group.submit(collective), kSeconds);
  });
  expect_all(outcomes, ErrorKind::CollectiveMismatch,
             {"collective 2:", "6 float32 at x.py:2", "7 float32 at y.py:2"});
}

TEST(Mismatch, IsReportedEvenIfARankIsMissing) {
  const auto start = Clock::now();
  const auto outcomes = run_ranks(3, [](Communicator& group) {
    if (group.rank() == 1) return std::this_thread::sleep_for(std::chrono::milliseconds(300));
    std::int32_t data = 0;
    const DType dtype = group.rank() == 0 ? DType::I32 : DType::F32;
    group.wait(group.submit(all_reduce(ReduceOp::Sum, dtype, &data, &data, 1)), kSeconds);
  });
  EXPECT_LT(seconds_since(start), 2);
  for (const int rank : {0, 2})
    EXPECT_EQ(outcomes[static_cast<std::size_t>(rank)].kind, ErrorKind::CollectiveMismatch);
}

TEST(Mismatch, ClosesTheGroupAndKeepsTheFirstMessage) {
  auto ranks = shm::make_thread_ranks(2);
  const auto first = run_ranks(ranks, [](Communicator& group) {
    std::int32_t data[2] = {};
    group.wait(group.submit(all_reduce(ReduceOp::Sum, DType::I32, data, data,
                                       static_cast<std::uint64_t>(1 + group.rank()))),
               kSeconds);
  });
  const auto second =
      run_ranks(ranks, [](Communicator& group) { group.wait(group.submit(barrier()), kSeconds); });
  for (std::size_t r = 0; r < 2; ++r) {
    EXPECT_EQ(second[r].kind, ErrorKind::GroupClosed);
    EXPECT_EQ(second[r].message,
              "barrier at test.py:3: an earlier failure closed this group. To continue, call "
              "ngd.shutdown() and then ngd.init() on all ranks, and make groups "
              "and steps again. The failure was:\n" +
                  first[r].message);
  }
}

TEST(Timeout, NamesTheMissingRankAndTheCollective) {
  const auto start = Clock::now();
  const auto outcomes = run_ranks(3, [](Communicator& group) {
    float data[512] = {};
    if (group.rank() == 1) return std::this_thread::sleep_for(std::chrono::milliseconds(700));
    group.wait(group.submit(all_reduce(ReduceOp::Mean, DType::F32, data, data, 512, "train.py:42")),
               0.4);
  });
  EXPECT_GE(seconds_since(start), 0.39);
  for (const std::size_t r : {0, 2}) {
    EXPECT_EQ(outcomes[r].kind, ErrorKind::CollectiveTimeout);
    EXPECT_EQ(
        outcomes[r].message,
        "all_reduce(mean) of 512 float32 at train.py:42: rank 1 did not arrive within 0.4 s." +
            in_no_collective(1));
  }
}

TEST(Timeout, OfZeroIsNoLimit) {
  const auto outcomes = run_ranks(2, [](Communicator& group) {
    if (group.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(600));
    group.wait(group.submit(barrier()), 0);
  });
  for (const Outcome& each : outcomes) EXPECT_FALSE(each.kind) << each.message;
}

TEST(Failure, OfARankSendsItsTracebackToAll) {
  const auto start = Clock::now();
  const std::string traceback = "Traceback (most recent call last):\nValueError: no such digit";
  const auto outcomes = run_ranks(4, [&](Communicator& group) {
    if (group.rank() == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      group.abort(traceback);
      group.submit(barrier());
    }
    group.wait(group.submit(barrier()), kSeconds);
  });
  EXPECT_LT(seconds_since(start), 1);
  for (const std::size_t r : {0, 1, 3}) {
    EXPECT_EQ(outcomes[r].kind, ErrorKind::RemoteRank);
    EXPECT_NE(outcomes[r].message.find("rank 2"), std::string::npos);
    EXPECT_NE(outcomes[r].message.find(traceback), std::string::npos) << outcomes[r].message;
  }
  EXPECT_EQ(outcomes[2].kind, ErrorKind::GroupClosed);
}

TEST(Failure, WithALongTracebackKeepsItsEnd) {
  const std::string traceback = std::string(100'000, 'x') + "ValueError: the last line";
  const auto outcomes = run_ranks(2, [&](Communicator& group) {
    if (group.rank() == 1) return group.abort(traceback);
    group.wait(group.submit(barrier()), kSeconds);
  });
  EXPECT_EQ(outcomes[0].kind, ErrorKind::RemoteRank);
  EXPECT_NE(outcomes[0].message.find("ValueError: the last line"), std::string::npos);
  EXPECT_GT(outcomes[0].message.size(), 8u << 10);
}

TEST(Failure, OfARankThatLeavesIsDetected) {
  const auto start = Clock::now();
  const auto outcomes = run_ranks(3, [](Communicator& group) {
    group.wait(group.submit(barrier()), kSeconds);
    if (group.rank() == 1) {
      group.close();
      group.close();
      return;
    }
    group.wait(group.submit(barrier("late.py:8")), kSeconds);
  });
  EXPECT_LT(seconds_since(start), 1);
  for (const std::size_t r : {0, 2}) {
    EXPECT_EQ(outcomes[r].kind, ErrorKind::RankLost);
    EXPECT_NE(outcomes[r].message.find("rank 1 has left the job.\n"), std::string::npos);
    EXPECT_NE(outcomes[r].message.find("late.py:8"), std::string::npos) << outcomes[r].message;
  }
}

TEST(Failure, IsNotReportedIfARankLeavesAfterItsShare) {
  for (int repeat = 0; repeat < 50; ++repeat) {
    const auto outcomes = run_ranks(3, [](Communicator& group) {
      std::vector<float> data(100'000, 1);
      group.wait(group.submit(
                     all_reduce(ReduceOp::Sum, DType::F32, data.data(), data.data(), data.size())),
                 kSeconds);
      group.close();
    });
    for (const Outcome& each : outcomes) ASSERT_FALSE(each.kind) << each.message;
  }
}

// Rank 1 has arrived everywhere, but does none of its share. Whatever rank 0 waits for, and
// whichever collective uses its staging buffer, rank 0 is notified.
TEST(Failure, OfARankThatLeavesMidwayIsDetectedInLaterCollectives) {
  const auto start = Clock::now();
  for (const Algorithm first : {Algorithm::Flat, Algorithm::Ring})
    for (const Kind second : {Kind::AllReduce, Kind::AllGather, Kind::AllToAll}) {
      std::atomic<int> submitted = 0;
      const auto outcomes = run_ranks(2, [&](Communicator& group) {
        std::vector<float> data(600'000), other(1'200'000);
        Collective one = all_reduce(ReduceOp::Sum, DType::F32, data.data(), data.data(), 600'000);
        one.algorithm = first;
        Collective two = one;
        two.kind = second;
        two.algorithm = Algorithm::Ring;
        two.count = 300'000;
        two.destination = other.data();
        group.submit(one);
        const Work last = group.submit(two);
        ++submitted;
        while (submitted < 2) std::this_thread::yield();
        if (group.rank() == 1) return group.close();
        group.wait(last, kSeconds);
      });
      EXPECT_FALSE(outcomes[1].kind) << outcomes[1].message;
      EXPECT_EQ(outcomes[0].kind, ErrorKind::RankLost) << outcomes[0].message;
      EXPECT_NE(outcomes[0].message.find("rank 1 has left the job.\n"), std::string::npos);
    }
  EXPECT_LT(seconds_since(start), 10);
}

// The same on two NUMA nodes, for each rank, in the shared arena and through staging buffers.
TEST(Failure, OfARankThatLeavesMidwayIsDetectedOnTheOtherNode) {
  constexpr std::size_t kElements = 600'000;
  for (const bool shared : {true, false})
    for (int leaver = 0; leaver < 4; ++leaver) {
      std::atomic<int> submitted = 0;
      const auto body = [&](Communicator& group) {
        std::vector<float> own(shared ? 0 : kElements);
        float* data = shared ? static_cast<float*>(group.allocate(kElements * sizeof(float)).data)
                             : own.data();
        const Work work = group.submit(
            all_reduce(ReduceOp::Sum, DType::F32, data, data, kElements, "leave.py:4"));
        ++submitted;
        while (submitted < 4) std::this_thread::yield();
        if (group.rank() == leaver) return group.close();
        group.wait(work, kSeconds);
      };
      const auto start = Clock::now();
      const auto outcomes = run_ranks(4, body, {0, 0, 1, 1});
      EXPECT_LT(seconds_since(start), 2);
      const std::string who = "rank " + std::to_string(leaver);
      for (int r = 0; r < 4; ++r) {
        const Outcome& outcome = outcomes[static_cast<std::size_t>(r)];
        if (r == leaver) {
          EXPECT_FALSE(outcome.kind) << outcome.message;
        } else {
          EXPECT_EQ(outcome.kind, ErrorKind::RankLost) << outcome.message;
          EXPECT_NE(outcome.message.find(who + " has left the job.\n"), std::string::npos)
              << outcome.message;
        }
      }
    }
}

// A rank that has arrived, and then does nothing for longer than the others wait.
TEST(Timeout, NamesTheRankThatDoesNotFinishOnNumaNodes) {
  const auto outcomes =
      run_ranks(4,
                [](Communicator& group) {
                  std::vector<float> data(600'000);
                  const Work work = group.submit(all_reduce(ReduceOp::Sum, DType::F32, data.data(),
                                                            data.data(), data.size(), "late.py:5"));
                  if (group.rank() == 2)
                    return std::this_thread::sleep_for(std::chrono::milliseconds(900));
                  group.wait(work, 0.4);
                },
                {0, 0, 1, 1});
  for (const std::size_t r : {0, 1, 3}) {
    EXPECT_EQ(outcomes[r].kind, ErrorKind::CollectiveTimeout) << outcomes[r].message;
    EXPECT_EQ(outcomes[r].message.find("all_reduce(sum) of 600000 float32 at late.py:5: rank 2 did "
                                       "not finish within 0.4 s.\n  rank 2 (process "),
              0u)
        << outcomes[r].message;
  }
}

TEST(Failure, ByAnInterruptEndsTheWaitOfAll) {
  const auto start = Clock::now();
  const auto outcomes = run_ranks(3, [](Communicator& group) {
    if (group.rank() == 2) return std::this_thread::sleep_for(std::chrono::milliseconds(400));
    const auto begin = Clock::now();
    if (group.rank() == 0) group.set_interrupt([=] { return seconds_since(begin) > 0.2; });
    group.wait(group.submit(barrier("loop.py:5")), kSeconds);
  });
  EXPECT_LT(seconds_since(start), 2);
  EXPECT_EQ(outcomes[0].kind, ErrorKind::Interrupted);
  EXPECT_EQ(outcomes[1].kind, ErrorKind::RemoteRank);
  EXPECT_NE(outcomes[1].message.find("rank 0"), std::string::npos) << outcomes[1].message;
}

TEST(Failure, IsRaisedByDone) {
  const auto outcomes = run_ranks(2, [](Communicator& group) {
    if (group.rank() == 1) return group.abort("boom");
    const Work work = group.submit(barrier());
    const auto begin = Clock::now();
    while (!group.done(work) && seconds_since(begin) < 5) std::this_thread::yield();
  });
  EXPECT_EQ(outcomes[0].kind, ErrorKind::RemoteRank) << outcomes[0].message;
}

TEST(Failure, BeforePublicationLeavesTheGroupOpen) {
  const auto outcomes = run_ranks(2, [](Communicator& group) {
    std::int32_t data = 1;
    const auto refused =
        outcome_of([&] { group.submit(all_reduce(ReduceOp::Mean, DType::I32, &data, &data, 1)); });
    if (refused.kind != ErrorKind::DType) throw std::runtime_error("was not refused");
    group.wait(group.submit(barrier()), kSeconds);
  });
  for (const Outcome& each : outcomes) EXPECT_FALSE(each.kind) << each.message;
}

TEST(Failure, ShortensALongCallSiteFromTheLeft) {
  const std::string site = "/home/" + std::string(200, 'd') + "/train.py:42";
  const auto outcomes = run_ranks(2, [&](Communicator& group) {
    if (group.rank() == 1) return;
    group.wait(group.submit(barrier(site.c_str())), 0.05);
  });
  EXPECT_NE(outcomes[0].message.find("d/train.py:42: rank 1 did"), std::string::npos)
      << outcomes[0].message;
  EXPECT_EQ(outcomes[0].message.find("/home"), std::string::npos);
}

// The user called join(), and not the all_reduce inside join().
TEST(Messages, ShowThePublicCallOfAnInnerCollective) {
  const std::string path = "/home/" + std::string(200, 'd') + "/train.py:42";
  const std::string site = "join() at " + path;
  const auto outcomes = run_ranks(2, [&](Communicator& group) {
    if (group.rank() == 0) group.wait(group.submit(barrier(site.c_str())), kSeconds);
    if (group.rank() == 1) group.wait(group.submit(barrier("a.py:3")), kSeconds);
    std::int32_t value = 1;
    const auto count = static_cast<std::uint64_t>(1 - group.rank());
    group.wait(group.submit(all_reduce(ReduceOp::Sum, DType::I32, &value, &value, count,
                                       group.rank() == 0 ? site.c_str() : "a.py:4")),
               kSeconds);
  });
  for (const Outcome& each : outcomes) {
    EXPECT_EQ(each.kind, ErrorKind::CollectiveMismatch);
    EXPECT_EQ(each.message.find("rank 0 and rank 1 called different collectives:\n"
                                "  rank 0: join() at ...ddd"),
              0u)
        << each.message;
    EXPECT_NE(each.message.find("d/train.py:42\n  rank 1: all_reduce(sum) of 0 int32 at a.py:4\n"
                                "All ranks must call the same collectives in the same order"),
              std::string::npos)
        << each.message;
  }
  Collective collective;
  collective.site = "train.py:12 in head: ReLU()";
  EXPECT_EQ(describe(collective), "barrier at train.py:12 in head: ReLU()");
  collective.site = "ngd.init()";
  EXPECT_EQ(describe(collective), "ngd.init()");
}

TEST(Messages, OfATracebackEndWithoutAnEmptyLine) {
  const auto outcomes = run_ranks(2, [](Communicator& group) {
    if (group.rank() == 1) return group.abort("Traceback\nValueError: 7\n\n");
    group.wait(group.submit(barrier()), kSeconds);
  });
  EXPECT_EQ(outcomes[0].message, "rank 1 failed: Traceback\nValueError: 7");
}

}  // namespace
}  // namespace ngd::comm
