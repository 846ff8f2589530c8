// SPDX-License-Identifier: Apache-2.0
// Tests collectives with threads as ranks, against the tree of tests/cpp/base/reference.hpp.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <random>

#include "base/reference.hpp"
#include "comm/shm/segment.hpp"
#include "ranks.hpp"

namespace ngd::comm {
namespace {

using reference::Bytes;

enum class Lane { SharedInPlace, Shared, PrivateInPlace, Private, Mixed };
constexpr Lane kLanes[] = {Lane::SharedInPlace, Lane::Shared, Lane::PrivateInPlace, Lane::Private,
                           Lane::Mixed};

void expect_success(const std::vector<Outcome>& outcomes) {
  for (std::size_t r = 0; r < outcomes.size(); ++r)
    ASSERT_FALSE(outcomes[r].kind) << "rank " << r << ": " << outcomes[r].message;
}

// The operands of one rank in private or shared memory. Mixed: even ranks private, odd ranks
// shared.
class Operands {
 public:
  Operands(Communicator& group, Lane lane, const Bytes& input)
      : group_(group), bytes_(input.size()) {
    const bool shared = lane == Lane::Shared || lane == Lane::SharedInPlace ||
                        (lane == Lane::Mixed && group.rank() % 2 == 1);
    const bool in_place = lane == Lane::SharedInPlace || lane == Lane::PrivateInPlace;
    source_ = place(shared, 0);
    destination_ = in_place ? source_ : place(shared, 1);
    if (bytes_ > 0) std::memcpy(source_, input.data(), bytes_);
    in_place_ = in_place;
  }
  Operands(const Operands&) = delete;
  ~Operands() {
    for (const SharedBlock& block : blocks_) group_.release(block);
  }

  void* source() const { return source_; }
  void* destination() const { return destination_; }
  Bytes result() const {
    const auto* begin = static_cast<const std::byte*>(destination_);
    return Bytes(begin, begin + bytes_);
  }
  bool source_is(const Bytes& input) const {
    return in_place_ || bytes_ == 0 || std::memcmp(source_, input.data(), bytes_) == 0;
  }

 private:
  void* place(bool shared, int which) {
    if (shared) {
      blocks_.push_back(group_.allocate(bytes_));
      return blocks_.back().data;
    }
    own_[which].resize(bytes_ + 1);
    return own_[which].data();
  }

  Communicator& group_;
  std::size_t bytes_;
  bool in_place_ = false;
  void* source_ = nullptr;
  void* destination_ = nullptr;
  std::vector<SharedBlock> blocks_;
  Bytes own_[2];
};

Combine combination_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::Min:
      return Combine::Min;
    case ReduceOp::Max:
      return Combine::Max;
    case ReduceOp::Prod:
      return Combine::Prod;
    default:
      return Combine::Sum;
  }
}

struct Case {
  ReduceOp op;
  DType dtype;
  std::size_t count;
};

bool legal(const Case& each) {
  if (each.op == ReduceOp::Mean) return is_floating(each.dtype);
  return each.op != ReduceOp::Sum || each.dtype != DType::Bool;
}

#if defined(__SANITIZE_THREAD__)
constexpr bool kSlow = true;  // fewer cases: each takes thirty times as long
#else
constexpr bool kSlow = false;
#endif

// Every op and dtype at small sizes. At larger sizes, only different widths of elements, around the
// limits of the inline payload and of the chunks.
std::vector<Case> cases(int size) {
  std::vector<Case> all;
  for (const DType dtype : reference::kAllTypes)
    for (const ReduceOp op :
         {ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Min, ReduceOp::Max, ReduceOp::Prod})
      for (const std::size_t count : {0, 1, 2, 7, 4099})
        if (legal({op, dtype, count}) && (!kSlow || op == ReduceOp::Max))
          all.push_back({op, dtype, count});
  for (const DType dtype : {DType::BF16, DType::F32})
    for (const std::size_t edge :
         {shm::kInlineBytes, std::size_t{512} << 10, std::size_t{1} << 20}) {
      const std::size_t at_edge = edge / size_of(dtype);
      for (const std::size_t count : {at_edge - 1, at_edge, at_edge + 1})
        if (!kSlow || count > at_edge) all.push_back({ReduceOp::Mean, dtype, count});
    }
  if (size <= 4 && !kSlow) {
    all.push_back({ReduceOp::Max, DType::U8, 1'500'001});
    all.push_back({ReduceOp::Sum, DType::F64, 1'000'003});
  }
  return all;
}

// The number of ranks, and the NUMA node of each. If there is none, all are on one.
struct World {
  int size;
  std::vector<int> nodes = {};
};

void PrintTo(const World& world, std::ostream* out) { *out << world.size; }

using comm::run_ranks;
std::vector<Outcome> run_ranks(const World& world, const std::function<void(Communicator&)>& body) {
  return run_ranks(world.size, body, world.nodes);
}

class AllReduceTest : public testing::TestWithParam<World> {};

TEST_P(AllReduceTest, FlatFollowsTheTreeBitForBit) {
  const int size = GetParam().size;
  auto ranks = shm::make_thread_ranks(size, GetParam().nodes);
  unsigned seed = 0;
  for (const Case& each : cases(size)) {
    const auto inputs = reference::random_inputs(each.dtype, size, each.count, ++seed);
    const Bytes want = reference::tree(combination_of(each.op), each.dtype, inputs, each.count,
                                       each.op == ReduceOp::Mean ? size : 1.0);
    expect_success(run_ranks(ranks, [&](Communicator& group) {
      const auto& input = inputs[static_cast<std::size_t>(group.rank())];
      for (const Lane lane : kLanes) {
        const Operands operands(group, lane, input);
        Collective collective =
            all_reduce(each.op, each.dtype, operands.source(), operands.destination(), each.count);
        collective.algorithm = Algorithm::Flat;
        group.wait(group.submit(collective), kSeconds);
        if (operands.result() != want || !operands.source_is(input))
          throw std::runtime_error(describe(collective) + " went wrong in lane " +
                                   std::to_string(static_cast<int>(lane)));
      }
    }));
  }
}

// The bound of a ring's error: the rounding of size - 1 sums of magnitudes up to 2 * size, of the
// division, and of the conversion to the storage type.
double ring_bound(const Case& each, int size) {
  const double ulp = each.dtype == DType::F64 ? 0x1p-52 : 0x1p-23;
  const double storage = each.dtype == DType::BF16  ? 0x1p-8
                         : each.dtype == DType::F16 ? 0x1p-11
                                                    : 0.0;
  const double largest = each.op == ReduceOp::Prod ? std::pow(2.0, size) : 2.0 * size;
  return largest * (size * ulp + storage);
}

double value_at(DType dtype, const Bytes& bytes, std::size_t index) {
  return visit_dtype(dtype, [&]<class T>() {
    T value;
    std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
    if constexpr (std::is_class_v<T>)
      return static_cast<double>(static_cast<float>(value));
    else
      return static_cast<double>(value);
  });
}

// The largest difference from the result that is computed in double.
double worst_error(const Case& each, const std::vector<Bytes>& inputs, const Bytes& result) {
  std::vector<double> values(inputs.size());
  double worst = 0;
  for (std::size_t i = 0; i < each.count; ++i) {
    for (std::size_t r = 0; r < inputs.size(); ++r) values[r] = value_at(each.dtype, inputs[r], i);
    double want =
        reference::tree_of(combination_of(each.op), values.data(), static_cast<int>(values.size()));
    if (each.op == ReduceOp::Mean) want /= static_cast<double>(values.size());
    worst = std::max(worst, std::abs(value_at(each.dtype, result, i) - want));
  }
  return worst;
}

TEST_P(AllReduceTest, RingIsExactForIntegersAndBoundedForFloats) {
  const int size = GetParam().size;
  auto ranks = shm::make_thread_ranks(size, GetParam().nodes);
  unsigned seed = 100;
  for (const Case& each : cases(size)) {
    const auto inputs = reference::random_inputs(each.dtype, size, each.count, ++seed);
    const bool exact = !is_floating(each.dtype) || each.op == ReduceOp::Min ||
                       each.op == ReduceOp::Max || size <= 2;
    const Bytes want = reference::tree(combination_of(each.op), each.dtype, inputs, each.count,
                                       each.op == ReduceOp::Mean ? size : 1.0);
    std::vector<Bytes> results(static_cast<std::size_t>(size));
    for (const Lane lane : kLanes) {
      expect_success(run_ranks(ranks, [&](Communicator& group) {
        const auto rank = static_cast<std::size_t>(group.rank());
        const Operands operands(group, lane, inputs[rank]);
        Collective collective =
            all_reduce(each.op, each.dtype, operands.source(), operands.destination(), each.count);
        collective.algorithm = Algorithm::Ring;
        group.wait(group.submit(collective), kSeconds);
        results[rank] = operands.result();
        if (!operands.source_is(inputs[rank])) throw std::runtime_error("the source has changed");
      }));
      for (const Bytes& result : results) ASSERT_EQ(result, results[0]) << "ranks differ";
      if (exact) {
        ASSERT_EQ(results[0], want) << name_of(each.dtype) << " " << each.count;
      } else {
        ASSERT_LE(worst_error(each, inputs, results[0]), ring_bound(each, size))
            << name_of(each.dtype) << " " << each.count;
      }
    }
  }
}

TEST_P(AllReduceTest, BroadcastComesFromEveryRoot) {
  const int size = GetParam().size;
  auto ranks = shm::make_thread_ranks(size, GetParam().nodes);
  for (const std::size_t count : {0, 1, 32, 33, 8192, 8193, 524'288, 524'289, 1'500'001})
    for (int root = 0; root < size; ++root) {
      const auto input = reference::random_inputs(DType::U8, 1, count, 9)[0];
      expect_success(run_ranks(ranks, [&](Communicator& group) {
        for (const Lane lane : kLanes) {
          const Operands operands(group, lane, group.rank() == root ? input : Bytes(count));
          const bool sends = group.rank() == root;
          const Collective collective = broadcast(DType::U8, sends ? operands.source() : nullptr,
                                                  operands.destination(), count, root);
          group.wait(group.submit(collective), kSeconds);
          if (operands.result() != input)
            throw std::runtime_error("wrong bytes in lane " +
                                     std::to_string(static_cast<int>(lane)));
        }
      }));
    }
}

// A pending collective, its memory, and the expected value of every element.
struct Flight {
  Flight(Communicator& group, std::mt19937& random, int number) {
    count = random() % 3 == 0 ? 300'000 : random() % 5000;
    shared = random() % 2 == 0;
    if (shared) block = group.allocate(count * sizeof(float));
    own.resize(shared ? 0 : count);
    at = shared ? static_cast<float*>(block.data) : own.data();
    std::fill_n(at, count, static_cast<float>(group.rank() + number));
    const int root = random() % 2 == 0 ? 0 : group.size() - 1;
    const bool sends = random() % 4 == 0;
    Collective collective = sends ? broadcast(DType::F32, at, at, count, root)
                                  : all_reduce(ReduceOp::Max, DType::F32, at, at, count);
    collective.algorithm = random() % 3 == 0 ? Algorithm::Ring : Algorithm::Flat;
    want = static_cast<float>(number + (sends ? root : group.size() - 1));
    work = group.submit(collective);
  }
  void check() const {
    for (std::size_t i = 0; i < count; ++i)
      if (at[i] != want) throw std::runtime_error("wrong element " + std::to_string(i));
  }

  bool shared = false;
  SharedBlock block;
  std::vector<float> own;
  float* at = nullptr;
  std::size_t count = 0;
  float want = 0;
  Work work;
};

TEST_P(AllReduceTest, ManyPendingCollectivesAreWaitedForInAnyOrder) {
  expect_success(run_ranks(GetParam(), [](Communicator& group) {
    std::mt19937 random(3);                                  // equal works on all ranks
    std::mt19937 mine(static_cast<unsigned>(group.rank()));  // another order on each rank
    for (int repeat = 0; repeat < 3; ++repeat) {
      std::vector<std::unique_ptr<Flight>> flights;
      for (int i = 0; i < 40; ++i) flights.push_back(std::make_unique<Flight>(group, random, i));
      std::shuffle(flights.begin(), flights.end(), mine);
      for (const auto& flight : flights) {
        group.wait(flight->work, kSeconds);
        flight->check();
        if (flight->shared) group.release(flight->block);
      }
    }
  }));
}

TEST_P(AllReduceTest, MayHaveMorePendingCollectivesThanSlots) {
  constexpr std::uint64_t kWorks = 5 * shm::kSlots + 3;
  expect_success(run_ranks(GetParam(), [](Communicator& group) {
    std::vector<std::int64_t> data(kWorks);
    std::vector<Work> works;
    for (std::size_t i = 0; i < kWorks; ++i) {
      data[i] = static_cast<std::int64_t>(i) * (group.rank() + 1);
      works.push_back(group.submit(all_reduce(ReduceOp::Sum, DType::I64, &data[i], &data[i], 1)));
    }
    for (std::size_t i = kWorks; i-- > 0;) group.wait(works[i], kSeconds);
    const std::int64_t ranks = group.size();
    for (std::size_t i = 0; i < kWorks; ++i)
      if (data[i] != static_cast<std::int64_t>(i) * ranks * (ranks + 1) / 2)
        throw std::runtime_error("wrong sum " + std::to_string(i));
  }));
}

TEST_P(AllReduceTest, DoneMakesProgressWithoutBlocking) {
  expect_success(run_ranks(GetParam(), [](Communicator& group) {
    std::vector<double> data(200'000, group.rank());
    const Work first =
        group.submit(all_reduce(ReduceOp::Max, DType::F64, data.data(), data.data(), data.size()));
    const Work second = group.submit(barrier());
    while (!group.done(second) || !group.done(first)) std::this_thread::yield();
    if (data.front() != group.size() - 1 || data.back() != group.size() - 1)
      throw std::runtime_error("wrong maximum");
  }));
}

TEST_P(AllReduceTest, ABarrierEndsAfterTheLastRankHasArrived) {
  std::atomic<int> arrived = 0;
  expect_success(run_ranks(GetParam(), [&](Communicator& group) {
    for (int round = 1; round <= 200; ++round) {
      arrived.fetch_add(1);
      group.wait(group.submit(barrier()), kSeconds);
      if (arrived.load() < round * group.size()) throw std::runtime_error("let through too early");
      group.wait(group.submit(barrier()), kSeconds);
    }
  }));
}

std::vector<World> worlds() {
  if (kSlow) return {{2}, {3}, {4, {0, 0, 1, 1}}};
  return {{1}, {2}, {3}, {4}, {8}, {4, {0, 0, 1, 1}}, {6, {2, 2, 0, 0, 1, 1}}};
}

INSTANTIATE_TEST_SUITE_P(Ranks, AllReduceTest, testing::ValuesIn(worlds()), [](const auto& info) {
  return std::to_string(info.param.size) + (info.param.nodes.empty() ? "" : "OnNodes");
});

TEST(SharedLane, BlocksAreAlignedSeparateAndReused) {
  auto ranks = shm::make_thread_ranks(1);
  Communicator& group = *ranks[0];
  std::mt19937 random(1);
  struct Held {
    SharedBlock block;
    unsigned char mark;
  };
  std::vector<Held> held;
  for (int i = 0; i < 3000; ++i) {
    if (held.size() > 50 || (!held.empty() && random() % 2 == 0)) {
      const std::size_t which = random() % held.size();
      const auto* bytes = static_cast<const unsigned char*>(held[which].block.data);
      for (std::size_t k = 0; k < held[which].block.bytes; ++k)
        ASSERT_EQ(bytes[k], held[which].mark) << "two blocks overlap";
      group.release(held[which].block);
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(which));
      continue;
    }
    const auto mark = static_cast<unsigned char>(i);
    held.push_back({group.allocate(random() % 10 == 0 ? 100'000 : random() % 300), mark});
    ASSERT_EQ(reinterpret_cast<std::uintptr_t>(held.back().block.data) % 64, 0u);
    std::memset(held.back().block.data, mark, held.back().block.bytes);
  }
  for (const Held& each : held) group.release(each.block);
  // The heap is one free block again: nearly the whole heap can be allocated, twice.
  for (int i = 0; i < 2; ++i) group.release(group.allocate(std::size_t{240} << 20));
}

TEST(SharedLane, ExhaustionIsAnErrorAndLeavesTheGroupOpen) {
  expect_success(run_ranks(2, [](Communicator& group) {
    for (const std::size_t bytes : {std::size_t{1} << 40, ~std::size_t{0}})
      if (outcome_of([&] { group.allocate(bytes); }).kind != ErrorKind::OutOfMemory)
        throw std::runtime_error("expected OutOfMemory");
    group.wait(group.submit(barrier()), kSeconds);
  }));
}

}  // namespace
}  // namespace ngd::comm
