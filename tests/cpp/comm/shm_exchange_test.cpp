// SPDX-License-Identifier: Apache-2.0
// Every kind of collective but all_reduce, among threads as ranks, compared with plain loops.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "base/reference.hpp"
#include "comm/shm/segment.hpp"
#include "ranks.hpp"

namespace ngd::comm {
namespace {

using reference::Bytes;

#if defined(__SANITIZE_THREAD__)
constexpr bool kSlow = true;  // fewer cases: each takes thirty times as long
#else
constexpr bool kSlow = false;
#endif

constexpr Kind kKindsHere[] = {Kind::ReduceScatter, Kind::AllGather, Kind::Broadcast, Kind::Reduce,
                               Kind::Gather,        Kind::Scatter,   Kind::AllToAll};

enum class Lane { Private, Shared, Mixed, OtherMix };
constexpr Lane kLanes[] = {Lane::Private, Lane::Shared, Lane::Mixed, Lane::OtherMix};

// One case, the same on all ranks. counts[p * size + r]: elements of the block that p gives r; empty
// where all blocks have `count`.
struct Case {
  Kind kind;
  ReduceOp op = ReduceOp::None;
  DType dtype = DType::U8;
  std::uint64_t count = 0;
  int root = 0;
  std::vector<std::uint64_t> counts;
  bool in_place = false;
};

void expect_success(const std::vector<Outcome>& outcomes) {
  for (std::size_t r = 0; r < outcomes.size(); ++r)
    ASSERT_FALSE(outcomes[r].kind) << "rank " << r << ": " << outcomes[r].message;
}

// What the definition in collective.hpp says, by loops over blocks.
class Model {
 public:
  Model(const Case& each, int size, unsigned seed) : case_(each), size_(size) {
    for (int r = 0; r < size; ++r)
      sources_.push_back(
          reference::random_inputs(each.dtype, 1, source_elements(collective(r), r, size),
                                   seed * 31 + static_cast<unsigned>(r))[0]);
  }

  // As rank `rank` gives it, without pointers.
  Collective collective(int rank) {
    Collective call;
    call.kind = case_.kind;
    call.op = case_.op;
    call.dtype = case_.dtype;
    call.count = case_.count;
    call.root = case_.root;
    call.site = "exchange.py:7";
    if (!case_.counts.empty()) {
      my_counts_.assign(static_cast<std::size_t>(size_), {});
      their_counts_.assign(static_cast<std::size_t>(size_), {});
      auto& mine = my_counts_[static_cast<std::size_t>(rank)];
      auto& theirs = their_counts_[static_cast<std::size_t>(rank)];
      for (int r = 0; r < size_; ++r) {
        mine.push_back(case_.kind == Kind::AllToAll ? block(rank, r) : block(r, r));
        theirs.push_back(block(r, rank));
      }
      call.counts = mine.data();
      if (case_.kind == Kind::AllToAll) call.receive_counts = theirs.data();
    }
    return call;
  }
  const Bytes& source(int rank) const { return sources_[static_cast<std::size_t>(rank)]; }

  Bytes destination(int rank) const {
    const int root = case_.root;
    Bytes all;
    switch (case_.kind) {
      case Kind::Broadcast:
        return source(root);
      case Kind::Gather:
        if (rank != root) return {};
        [[fallthrough]];
      case Kind::AllGather:
        for (int p = 0; p < size_; ++p) append(all, source(p));
        return all;
      case Kind::Scatter:
        return cut(root, rank);
      case Kind::AllToAll:
        for (int p = 0; p < size_; ++p) append(all, cut(p, rank));
        return all;
      case Kind::Reduce:
        return rank == root ? reduced(sources_, case_.count) : Bytes{};
      case Kind::ReduceScatter: {
        std::vector<Bytes> blocks;
        for (int p = 0; p < size_; ++p) blocks.push_back(cut(p, rank));
        return reduced(blocks, block(rank, rank));
      }
      default:
        throw std::logic_error("not here");
    }
  }

  // Where my block begins in the row of all ranks' blocks, in bytes.
  std::size_t own_offset(int rank) const {
    std::size_t sum = 0;
    for (int r = 0; r < rank; ++r) sum += block(r, r);
    return sum * size_of(case_.dtype);
  }

 private:
  std::uint64_t block(int producer, int consumer) const {
    return case_.counts.empty()
               ? case_.count
               : case_.counts[static_cast<std::size_t>(producer * size_ + consumer)];
  }
  static void append(Bytes& to, const Bytes& from) { to.insert(to.end(), from.begin(), from.end()); }
  // The block of p's source that is r's.
  Bytes cut(int producer, int consumer) const {
    std::size_t begin = 0;
    const bool uneven = case_.kind == Kind::AllToAll;
    for (int r = 0; r < consumer; ++r) begin += uneven ? block(producer, r) : block(r, r);
    const std::size_t count = uneven ? block(producer, consumer) : block(consumer, consumer);
    const auto first = source(producer).begin() +
                       static_cast<std::ptrdiff_t>(begin * size_of(case_.dtype));
    return Bytes(first, first + static_cast<std::ptrdiff_t>(count * size_of(case_.dtype)));
  }
  Bytes reduced(const std::vector<Bytes>& operands, std::size_t count) const {
    const Combine combine = case_.op == ReduceOp::Max    ? Combine::Max
                            : case_.op == ReduceOp::Min  ? Combine::Min
                            : case_.op == ReduceOp::Prod ? Combine::Prod
                                                         : Combine::Sum;
    return reference::tree(combine, case_.dtype, operands, count,
                           case_.op == ReduceOp::Mean ? size_ : 1.0);
  }

  Case case_;
  int size_;
  std::vector<Bytes> sources_;
  std::vector<std::vector<std::uint64_t>> my_counts_, their_counts_;
};

// Memory of one rank, of the lane that it is in.
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

// Where one is a part of the other, or both are the same: a single piece of memory.
struct Operands {
  std::byte* source = nullptr;
  std::byte* destination = nullptr;
};

Operands place(Room& one, Room& other, const Case& each, const Model& model, int rank,
               std::size_t source, std::size_t destination) {
  const bool whole = each.kind == Kind::Broadcast || each.kind == Kind::Reduce;
  if (!each.in_place || each.kind == Kind::AllToAll)
    return {one.make(source), other.make(destination)};
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
        std::memset(operands.source, 0x5a, input.size());  // it is mine again
      }
    }));
  }
}

std::vector<std::uint64_t> random_counts(int size, std::uint64_t upto, std::mt19937& random) {
  std::vector<std::uint64_t> counts(static_cast<std::size_t>(size * size));
  for (auto& each : counts) each = random() % 3 == 0 ? 0 : random() % (upto + 1);
  return counts;
}

class ExchangeTest : public testing::TestWithParam<int> {};

TEST_P(ExchangeTest, EveryKindAndSize) {
  auto ranks = shm::make_thread_ranks(GetParam());
  unsigned seed = 0;
  for (const Kind kind : kKindsHere)
    for (const std::uint64_t count : {0, 1, 3, 24, 25, 700, 2049, 40'000, 700'001}) {
      if (kSlow && count > 2049 && count % 2 == 0) continue;
      const int size = GetParam();
      for (const bool in_place : {false, true}) {
        Case each{kind, ReduceOp::Max, DType::U8, count};
        each.root = static_cast<int>(seed) % size;
        each.in_place = in_place;
        check_case(ranks, each, ++seed);
      }
    }
}

TEST_P(ExchangeTest, EveryDtypeAndReduction) {
  auto ranks = shm::make_thread_ranks(GetParam());
  unsigned seed = 1000;
  for (const Kind kind : {Kind::ReduceScatter, Kind::Reduce})
    for (const DType dtype : reference::kAllTypes)
      for (const ReduceOp op :
           {ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Min, ReduceOp::Max, ReduceOp::Prod}) {
        if (op == ReduceOp::Mean && !is_floating(dtype)) continue;
        if (op == ReduceOp::Sum && dtype == DType::Bool) continue;
        if (kSlow && op != ReduceOp::Max) continue;
        for (const std::uint64_t count : {5, 1500}) {
          Case each{kind, op, dtype, count};
          each.root = GetParam() - 1;
          check_case(ranks, each, ++seed);
        }
      }
  for (const DType dtype : {DType::BF16, DType::F32, DType::F64})
    for (const ReduceOp op : {ReduceOp::Mean, ReduceOp::Sum})
      check_case(ranks, {Kind::ReduceScatter, op, dtype, kSlow ? 50'001u : 300'001u}, ++seed);
}

TEST_P(ExchangeTest, UnevenBlocks) {
  const int size = GetParam();
  auto ranks = shm::make_thread_ranks(size);
  std::mt19937 random(5);
  unsigned seed = 2000;
  for (const Kind kind : {Kind::ReduceScatter, Kind::AllGather, Kind::Gather, Kind::Scatter,
                          Kind::AllToAll})
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

// Many of all kinds at once, waited for in another order on each rank.
TEST_P(ExchangeTest, ManyInFlight) {
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

TEST(ExchangeMismatch, OfWhatIsSentAndExpected) {
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
    EXPECT_NE(each.message.find("rank 0 sends 2 elements to rank 2, which expects 5"),
              std::string::npos)
        << each.message;
    EXPECT_NE(each.message.find("v.py:4"), std::string::npos) << each.message;
  }
}

}  // namespace
}  // namespace ngd::comm
