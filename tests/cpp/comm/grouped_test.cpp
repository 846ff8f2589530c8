// SPDX-License-Identifier: Apache-2.0
// All-reduces of many tensors in one call: the bits of single calls, in as few collectives as
// possible.
#include "comm/grouped.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "comm/ranks.hpp"

namespace ngd::comm {
namespace {

// Small, empty, large and medium tensors. The dtypes alternate, so that packs of both are open at
// once.
const std::vector<std::uint64_t> kCounts = [] {
  std::vector<std::uint64_t> counts{3, 0, 1, 700, 15'000, 30'000, 150'000, 5, 40'000, 100'000};
  counts.insert(counts.end(), 20, 16'000);
  return counts;
}();

struct Bundle {
  std::vector<std::vector<double>> memory;
  std::vector<Tensor> tensors;
};

DType dtype_of(std::size_t i) { return i % 2 == 0 ? DType::F64 : DType::F32; }

Bundle bundle(int rank) {
  Bundle result;
  result.memory.resize(kCounts.size());
  for (std::size_t i = 0; i < kCounts.size(); ++i) {
    std::vector<double>& memory = result.memory[i];
    memory.resize(kCounts[i] + 1);
    const auto value = [&](std::uint64_t k) {
      return static_cast<double>((k * 7 + i * 3 + static_cast<std::uint64_t>(rank) * 11) % 23) / 3;
    };
    auto* singles = reinterpret_cast<float*>(memory.data());
    for (std::uint64_t k = 0; k < kCounts[i]; ++k)
      dtype_of(i) == DType::F64 ? void(memory[k] = value(k))
                                : void(singles[k] = static_cast<float>(value(k)));
    result.tensors.push_back({dtype_of(i), kCounts[i], memory.data(), memory.data()});
  }
  return result;
}

Collective pattern_of(Kind kind, int root) {
  Collective pattern;
  pattern.kind = kind;
  pattern.op = kind == Kind::AllReduce ? ReduceOp::Sum : ReduceOp::None;
  pattern.root = root;
  pattern.site = "test.py:9";
  return pattern;
}

std::uint64_t calls(const Communicator& communicator) {
  std::uint64_t sum = 0;
  for (const CallStats& each : communicator.stats()) sum += each.calls;
  return sum;
}

class GroupedTest : public testing::TestWithParam<int> {};

TEST_P(GroupedTest, HasTheBitsOfSingleCalls) {
  for (const Kind kind : {Kind::AllReduce, Kind::Broadcast}) {
    const auto outcomes = run_ranks(GetParam(), [&](Communicator& communicator) {
      Bundle one = bundle(communicator.rank()), many = bundle(communicator.rank());
      for (const Tensor& tensor : one.tensors) {
        Collective single = pattern_of(kind, communicator.size() - 1);
        single.dtype = tensor.dtype;
        single.count = tensor.count;
        single.source = tensor.source;
        single.destination = tensor.destination;
        communicator.wait(communicator.submit(single), kSeconds);
      }
      const std::uint64_t before = calls(communicator);
      Grouped grouped(communicator, pattern_of(kind, communicator.size() - 1), many.tensors);
      if (kind == Kind::AllReduce) {
        grouped.wait(kSeconds);
      } else {
        while (!grouped.wait_for(0.001)) {
        }
      }
      EXPECT_TRUE(grouped.wait_for(0));
      for (std::size_t i = 0; i < kCounts.size(); ++i)
        EXPECT_EQ(std::memcmp(one.memory[i].data(), many.memory[i].data(),
                              kCounts[i] * size_of(dtype_of(i))),
                  0)
            << i;
      // Three tensors are larger than 128 KiB and are sent separately. The other ones are sent
      // together, float64 in two packs of up to 1 MiB.
      if (communicator.size() > 1) {
        EXPECT_EQ(calls(communicator) - before, 6u);
      }
    });
    for (const Outcome& outcome : outcomes) EXPECT_FALSE(outcome.kind) << outcome.message;
  }
}

TEST_P(GroupedTest, RejectsBadTensorsBeforeAnythingStarts) {
  const auto outcomes = run_ranks(GetParam(), [&](Communicator& communicator) {
    std::vector<double> memory(4, 1.0);
    const std::vector<Tensor> tensors{{DType::F64, 4, memory.data(), memory.data()},
                                      {DType::Bool, 4, memory.data(), memory.data()}};
    const Outcome outcome =
        outcome_of([&] { Grouped grouped(communicator, pattern_of(Kind::AllReduce, 0), tensors); });
    EXPECT_EQ(outcome.kind, ErrorKind::DType);
    EXPECT_NE(outcome.message.find("bool"), std::string::npos) << outcome.message;
    Grouped none(communicator, pattern_of(Kind::AllReduce, 0), {});
    none.wait(kSeconds);
    communicator.wait(communicator.submit(barrier()), kSeconds);
  });
  for (const Outcome& outcome : outcomes) EXPECT_FALSE(outcome.kind) << outcome.message;
}

INSTANTIATE_TEST_SUITE_P(Ranks, GroupedTest, testing::Values(1, 2, 3, 4));

TEST(Grouped, RejectsResultsThatOverlapOtherTensors) {
  const auto group = make_self_communicator();
  std::vector<double> memory(100);
  const auto at = [&](std::size_t source, std::size_t destination) {
    return Tensor{DType::F64, 10, &memory[source], &memory[destination]};
  };
  const Collective sum = pattern_of(Kind::AllReduce, 0);
  const std::vector<std::vector<Tensor>> bad{{at(0, 0), at(0, 0)},
                                             {at(0, 20), at(40, 29)},
                                             {at(0, 20), at(20, 0)},
                                             {at(0, 50), at(41, 80)}};
  for (const std::vector<Tensor>& tensors : bad) EXPECT_THROW(Grouped(*group, sum, tensors), Error);
  Grouped(*group, sum, {at(0, 0), at(10, 10), at(40, 90), at(20, 30)}).wait(1);
}

}  // namespace
}  // namespace ngd::comm
