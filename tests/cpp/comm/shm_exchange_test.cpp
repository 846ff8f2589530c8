// SPDX-License-Identifier: Apache-2.0
// Tests every kind of collective except all_reduce, with threads as ranks, against plain loops.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "comm/shm/segment.hpp"
#include "model.hpp"
#include "ranks.hpp"

namespace ngd::comm {
namespace {

#if defined(__SANITIZE_THREAD__)
constexpr bool kSlow = true;  // fewer cases: each takes thirty times as long
#else
constexpr bool kSlow = false;
#endif

enum class Lane { Private, Shared, Mixed, OtherMix };
constexpr Lane kLanes[] = {Lane::Private, Lane::Shared, Lane::Mixed, Lane::OtherMix};

void expect_success(const std::vector<Outcome>& outcomes) {
  for (std::size_t r = 0; r < outcomes.size(); ++r)
    ASSERT_FALSE(outcomes[r].kind) << "rank " << r << ": " << outcomes[r].message;
}

// The buffers of one rank, in private or shared memory.
class Room {
 public:
  Room(Communicator& group, Lane lane, bool is_source)
      : group_(group),
        shared_(lane == Lane::Shared || (lane == Lane::Mixed && group.rank() % 2 == 1) ||
                (lane == Lane::OtherMix && (group.rank() % 2 == 0) == is_source)) {}
  Room(const Room&) = delete;
  ~Room() {
    if (shared_) group_.release(block_);
  }
  std::byte* make(std::size_t bytes) {
    own_.assign(bytes + 1, std::byte{0xee});
    if (!shared_) return own_.data();
    block_ = group_.allocate(bytes);
    std::memset(block_.data, 0xee, bytes);
    return static_cast<std::byte*>(block_.data);
  }

 private:
  Communicator& group_;
  bool shared_;
  SharedBlock block_;
  Bytes own_;
};

// If source and destination overlap, both are in one allocation.
struct Operands {
  std::byte* source = nullptr;
  std::byte* destination = nullptr;
};

Operands place(Room& one, Room& other, const Case& each, const Model& model, int rank,
               std::size_t source, std::size_t destination) {
  const bool whole =
      each.kind == Kind::Broadcast || each.kind == Kind::Reduce || each.kind == Kind::AllToAll;
  const bool apart = (each.on_odd_ranks_only && rank % 2 == 0) ||
                     (each.kind == Kind::AllToAll && !each.counts.empty());
  if (!each.in_place || apart) return {one.make(source), other.make(destination)};
  std::byte* memory = one.make(std::max(source, destination));
  if (whole || source == 0 || destination == 0) return {memory, memory};
  if (source < destination) return {memory + model.own_offset(rank), memory};
  return {memory, memory + model.own_offset(rank)};
}

void check_case(std::vector<std::unique_ptr<Communicator>>& ranks, const Case& each,
                unsigned seed) {
  const int size = static_cast<int>(ranks.size());
  const Model made(each, size, seed);
  std::vector<Bytes> wanted;
  for (int r = 0; r < size; ++r) wanted.push_back(made.destination(r));
  for (const Lane lane : kLanes) {
    // Each case takes long if ranks share cores.
    const bool few = kSlow ? lane == Lane::OtherMix : size > 4 && lane > Lane::Shared;
    if (few) continue;
    expect_success(run_ranks(ranks, [&](Communicator& group) {
      Model model = made;
      const int rank = group.rank();
      Collective call = model.collective(rank);
      const Bytes& input = model.source(rank);
      const Bytes& want = wanted[static_cast<std::size_t>(rank)];
      Room one(group, lane, true), other(group, lane, false);
      const Operands operands = place(one, other, each, model, rank, input.size(), want.size());
      if (!input.empty()) std::memcpy(operands.source, input.data(), input.size());
      call.source = operands.source;
      call.destination = operands.destination;
      group.wait(group.submit(call), kSeconds);
      const std::string what = describe(call) + " in lane " +
                               std::to_string(static_cast<int>(lane)) +
                               (each.in_place ? " in place" : "");
      if (!want.empty() && std::memcmp(operands.destination, want.data(), want.size()) != 0)
        throw std::runtime_error(what + ": wrong result");
      if (!each.in_place && !input.empty()) {
        if (std::memcmp(operands.source, input.data(), input.size()) != 0)
          throw std::runtime_error(what + ": the source has changed");
        std::memset(operands.source, 0x5a, input.size());  // the source may be overwritten now
      }
    }));
  }
}

class ExchangeTest : public testing::TestWithParam<int> {};

TEST_P(ExchangeTest, ComputesEveryKindAndSize) {
  auto ranks = shm::make_thread_ranks(GetParam());
  unsigned seed = 0;
  for (const Kind kind : kKindsHere)
    for (const std::uint64_t count : {0, 1, 3, 24, 25, 698, 2049, 40'003, 700'001}) {
      const int size = GetParam();
      if ((kSlow || size > 4) && count % 5 == 3) continue;
      for (const bool in_place : {false, true}) {
        Case each{kind, ReduceOp::Max, DType::U8, count};
        each.root = static_cast<int>(seed) % size;
        each.in_place = in_place;
        check_case(ranks, each, ++seed);
      }
    }
}

TEST_P(ExchangeTest, ComputesEveryDtypeAndReduction) {
  auto ranks = shm::make_thread_ranks(GetParam());
  unsigned seed = 1000;
  for (const Kind kind : {Kind::ReduceScatter, Kind::Reduce})
    for (const DType dtype : reference::kAllTypes)
      for (const ReduceOp op :
           {ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Min, ReduceOp::Max, ReduceOp::Prod}) {
        if (op == ReduceOp::Mean && !is_floating(dtype)) continue;
        if (op == ReduceOp::Sum && dtype == DType::Bool) continue;
        if ((kSlow || GetParam() > 4) && op != ReduceOp::Max && op != ReduceOp::Mean) continue;
        for (const std::uint64_t count : {5, 1500}) {
          Case each{kind, op, dtype, count};
          each.root = GetParam() - 1;
          check_case(ranks, each, ++seed);
        }
      }
  for (const DType dtype : {DType::BF16, DType::F32, DType::F64})
    for (const ReduceOp op : {ReduceOp::Mean, ReduceOp::Sum})
      check_case(ranks, {Kind::ReduceScatter, op, dtype, kSlow ? 90'001u : 300'001u}, ++seed);
}

TEST_P(ExchangeTest, ComputesUnevenBlocks) {
  const int size = GetParam();
  auto ranks = shm::make_thread_ranks(size);
  std::mt19937 random(5);
  unsigned seed = 2000;
  for (const Kind kind :
       {Kind::ReduceScatter, Kind::AllGather, Kind::Gather, Kind::Scatter, Kind::AllToAll})
    for (const std::uint64_t upto : {0, 4, 200, 5000, 400'000})
      for (const bool in_place : {false, true}) {
        if (kSlow && in_place) continue;
        Case each{kind, ReduceOp::Sum, upto == 200 ? DType::I64 : DType::I16};
        each.root = size / 2;
        each.counts = random_counts(size, upto, random);
        each.in_place = in_place;
        check_case(ranks, each, ++seed);
      }
}

// If all operands are shared, all ranks copy a large broadcast and an all_to_all in place together.
// They do not if one rank's call does not allow it.
TEST_P(ExchangeTest, CopiesTogetherOrNot) {
  auto ranks = shm::make_thread_ranks(GetParam());
  unsigned seed = 4000;
  const std::uint64_t large = (8 << 20) + 77;
  for (const bool in_place : {false, true}) {
    if (kSlow || GetParam() > 4) break;
    Case each{Kind::Broadcast, ReduceOp::None, DType::U8, large};
    each.root = GetParam() - 1;
    each.in_place = in_place;
    check_case(ranks, each, ++seed);
  }
  for (const std::uint64_t count : {1, 31, 2048, 2049, 300'001, 1'100'003})
    for (const bool on_odd_ranks_only : {false, true}) {
      if (count > 300'001 && (kSlow || GetParam() > 4)) continue;
      Case each{Kind::AllToAll, ReduceOp::None, DType::U16, count};
      each.in_place = true;
      each.on_odd_ranks_only = on_odd_ranks_only;
      check_case(ranks, each, ++seed);
    }
}

// Blocks that are stored with non-temporal instructions, at an odd offset.
TEST(ExchangeOfLargeBlocks, AreStoredCompletely) {
  auto ranks = shm::make_thread_ranks(2);
  for (const Kind kind : {Kind::AllGather, Kind::Broadcast, Kind::AllToAll})
    check_case(ranks, {kind, ReduceOp::None, DType::U8, (8 << 20) + 77}, 3000);
}

// Many collectives of all kinds at once, and each rank waits for them in another order.
TEST_P(ExchangeTest, RunsManyPendingCollectives) {
  expect_success(run_ranks(GetParam(), [](Communicator& group) {
    std::mt19937 random(11), mine(static_cast<unsigned>(group.rank()));
    struct Flight {
      std::vector<std::int32_t> source, destination;
      Work work;
      Kind kind;
      int root, number;
    };
    const auto size = static_cast<std::size_t>(group.size());
    for (int repeat = 0; repeat < (kSlow ? 2 : 6); ++repeat) {
      std::vector<Flight> flights(30);
      int number = 0;
      for (Flight& each : flights) {
        each.number = ++number;
        each.kind = kKindsHere[random() % std::size(kKindsHere)];
        each.root = static_cast<int>(random() % size);
        const std::size_t count = random() % 3 == 0 ? 200'000 + random() % 1000 : random() % 1000;
        Collective call;
        call.kind = each.kind;
        call.op = ReduceOp::Sum;
        call.dtype = DType::I32;
        call.count = count;
        call.root = each.root;
        each.source.assign(source_elements(call, group.rank(), group.size()),
                           group.rank() + each.number);
        each.destination.assign(destination_elements(call, group.rank(), group.size()), -1);
        call.source = each.source.data();
        call.destination = each.destination.data();
        each.work = group.submit(call);
      }
      std::shuffle(flights.begin(), flights.end(), mine);
      for (Flight& each : flights) {
        group.wait(each.work, kSeconds);
        const std::size_t block = each.destination.size() / size;
        const int n = group.size(), sum = n * (n - 1) / 2 + n * each.number;
        for (std::size_t i = 0; i < each.destination.size(); ++i) {
          int want = sum;
          if (!reduces(each.kind)) {
            const bool rows = each.kind == Kind::AllGather || each.kind == Kind::Gather ||
                              each.kind == Kind::AllToAll;
            want = each.number + (rows ? static_cast<int>(i / block) : each.root);
          }
          if (each.destination[i] != want)
            throw std::runtime_error(std::string(name_of(each.kind)) + ": wrong element");
        }
      }
    }
  }));
}

INSTANTIATE_TEST_SUITE_P(Ranks, ExchangeTest,
                         testing::ValuesIn(kSlow ? std::vector{2, 3} : std::vector{1, 2, 3, 4, 8}),
                         [](const auto& info) { return std::to_string(info.param); });

TEST(ExchangeMismatch, OfCountsNamesBothSides) {
  const auto outcomes = run_ranks(3, [](Communicator& group) {
    const std::uint64_t counts[3] = {1, 2, group.rank() == 1 ? 4u : 3u};
    std::int32_t source[16] = {}, destination[16] = {};
    Collective call;
    call.kind = Kind::AllGather;
    call.dtype = DType::I32;
    call.counts = counts;
    call.source = source;
    call.destination = destination;
    call.site = "v.py:3";
    group.wait(group.submit(call), kSeconds);
  });
  for (const Outcome& each : outcomes) {
    EXPECT_EQ(each.kind, ErrorKind::CollectiveMismatch) << each.message;
    EXPECT_NE(each.message.find("counts 1 2 3"), std::string::npos) << each.message;
    EXPECT_NE(each.message.find("counts 1 2 4"), std::string::npos) << each.message;
  }
}

TEST(ExchangeMismatch, OfSentAndExpectedBlocksNamesBothSides) {
  const auto outcomes = run_ranks(3, [](Communicator& group) {
    std::uint64_t sends[3] = {2, 2, 2}, expects[3] = {2, 2, 2};
    if (group.rank() == 2) expects[0] = 5;
    std::int32_t source[16] = {}, destination[16] = {};
    Collective call;
    call.kind = Kind::AllToAll;
    call.dtype = DType::I32;
    call.counts = sends;
    call.receive_counts = expects;
    call.source = source;
    call.destination = destination;
    call.site = "v.py:4";
    group.wait(group.submit(call), kSeconds);
    group.wait(group.submit(barrier()), kSeconds);
  });
  for (const Outcome& each : outcomes) {
    EXPECT_EQ(each.kind, ErrorKind::CollectiveMismatch) << each.message;
    for (const char* fact : {"rank 0: sends 2 elements to rank 2", "rank 2: expects 5 elements"})
      EXPECT_NE(each.message.find(fact), std::string::npos) << each.message;
    EXPECT_NE(each.message.find("v.py:4"), std::string::npos) << each.message;
  }
}

}  // namespace
}  // namespace ngd::comm
