// SPDX-License-Identifier: Apache-2.0
#include "comm/stats.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>

#include "ranks.hpp"

namespace ngd::comm {
namespace {

TEST(Statistics, HasOneEntryPerKindReductionAndSite) {
  Statistics statistics(3);
  char site[] = "a.py:1";
  const Collective sum = all_reduce(ReduceOp::Sum, DType::F32, nullptr, nullptr, 10, site);
  const Collective mean = all_reduce(ReduceOp::Mean, DType::F32, nullptr, nullptr, 10, site);
  const Statistics::Entry first = statistics.entry_of(sum);
  EXPECT_EQ(statistics.entry_of(sum), first);
  EXPECT_NE(statistics.entry_of(mean), first);
  const std::string copy = site;  // an equal text at another address
  EXPECT_EQ(statistics.entry_of(
                all_reduce(ReduceOp::Sum, DType::F32, nullptr, nullptr, 10, copy.c_str())),
            first);
  site[5] = '2';  // another text at the same address
  EXPECT_NE(statistics.entry_of(sum), first);
  statistics.add(first, 40, 2'000'000'000, 2);
  statistics.add(first, 40, 1'000'000'000, 2);
  statistics.add_waited(first, 500'000'000);
  const std::vector<CallStats> report = statistics.report();
  ASSERT_EQ(report.size(), 3u);
  EXPECT_EQ(report[0].site, "a.py:1");
  EXPECT_EQ(report[0].calls, 2u);
  EXPECT_EQ(report[0].bytes, 80u);
  EXPECT_DOUBLE_EQ(report[0].seconds, 3);
  EXPECT_DOUBLE_EQ(report[0].waited_seconds, 0.5);
  EXPECT_EQ(report[0].last, (std::vector<std::uint64_t>{0, 0, 2}));
}

TEST(Statistics, CountsManySitesWithoutTheirNames) {
  Statistics statistics(1);
  const auto entry_of = [&](int i) {
    const std::string site = "generated.py:" + std::to_string(i);
    return statistics.entry_of(barrier(site.c_str()));
  };
  const Statistics::Entry first = entry_of(0);
  for (int i = 0; i < 10'000; ++i) statistics.add(entry_of(i), 0, 1, 0);
  EXPECT_EQ(entry_of(0), first);  // sites that have a name keep it
  const std::vector<CallStats> report = statistics.report();
  EXPECT_LT(report.size(), 5000u);
  std::uint64_t calls = 0;
  for (const CallStats& each : report) calls += each.calls;
  EXPECT_EQ(calls, 10'000u);
}

TEST(Statistics, NamesTheStragglerAndTheTimeWaitedForIt) {
  std::atomic<int> there{0};
  const auto outcomes = run_ranks(3, [&](Communicator& group) {
    for (int i = 0; i < 5; ++i) {
      if (group.rank() == 1) {
        while (there < 2 * (i + 1)) std::this_thread::yield();
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
      std::vector<double> data(1000);
      const Work work = group.submit(all_reduce(ReduceOp::Sum, DType::F64, data.data(), data.data(),
                                                data.size(), "train.py:8"));
      if (group.rank() != 1) ++there;
      group.wait(work, kSeconds);
    }
    if (group.rank() < 2) {  // transfers between two ranks are counted too
      Collective call;
      call.kind = group.rank() == 0 ? Kind::Send : Kind::Receive;
      call.dtype = DType::F64;
      call.count = 4;
      call.root = 1 - group.rank();
      double data[4] = {};
      call.source = call.destination = data;
      group.wait(group.submit(call), kSeconds);
    }
    const std::vector<CallStats> report = group.stats();
    const CallStats& sums = report.at(0);
    const bool waits = group.rank() != 1;
    if (sums.calls != 5 || sums.bytes != 40'000 || sums.site != "train.py:8" || sums.last[1] != 5)
      throw std::runtime_error("wrong counts");
    if (sums.seconds < sums.waited_seconds || (waits && sums.seconds < 0.08))
      throw std::runtime_error("wrong times");
    if (waits && sums.waited_seconds <= 0) throw std::runtime_error("who comes early waits");
    if (group.rank() < 2 && (report.at(1).calls != 1 || report.at(1).bytes != 32))
      throw std::runtime_error("the transfer was not counted");
  });
  for (const Outcome& each : outcomes) EXPECT_FALSE(each.kind) << each.message;
}

}  // namespace
}  // namespace ngd::comm
