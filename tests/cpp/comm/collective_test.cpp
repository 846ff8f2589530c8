// SPDX-License-Identifier: Apache-2.0
#include "comm/collective.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "comm/communicator.hpp"
#include "comm/identity.hpp"
#include "ranks.hpp"

namespace ngd::comm {
namespace {

TEST(Collective, NamesConvertInBothDirections) {
  for (int i = 0; i <= static_cast<int>(Kind::Barrier); ++i)
    EXPECT_EQ(kind_named(name_of(static_cast<Kind>(i))), static_cast<Kind>(i));
  for (int i = 0; i <= static_cast<int>(ReduceOp::Prod); ++i)
    EXPECT_EQ(reduce_op_named(name_of(static_cast<ReduceOp>(i))), static_cast<ReduceOp>(i));
  EXPECT_EQ(algorithm_named("ring"), Algorithm::Ring);
  const Outcome outcome = outcome_of([] { reduce_op_named("average"); });
  EXPECT_EQ(outcome.kind, ErrorKind::InvalidArgument);
  EXPECT_EQ(outcome.message, "op: expected one of none, sum, mean, min, max, prod; got average");
}

TEST(Collective, IsDescribedWithItsSite) {
  Collective collective =
      all_reduce(ReduceOp::Mean, DType::F32, nullptr, nullptr, 512, "train.py:42");
  EXPECT_EQ(describe(collective), "all_reduce(mean) of 512 float32 at train.py:42");
  EXPECT_EQ(describe(broadcast(DType::F64, nullptr, nullptr, 12, 0, "")),
            "broadcast of 12 float64");
  EXPECT_EQ(describe(barrier("b.py:9")), "barrier at b.py:9");
}

TEST(Collective, ImpossibleCollectivesAreRejected) {
  const auto kind_of = [](const Collective& collective) {
    return outcome_of([&] { validate(collective, 0, 2); }).kind;
  };
  EXPECT_EQ(kind_of(all_reduce(ReduceOp::Mean, DType::I32, nullptr, nullptr, 1)), ErrorKind::DType);
  EXPECT_EQ(kind_of(all_reduce(ReduceOp::Sum, DType::Bool, nullptr, nullptr, 1)), ErrorKind::DType);
  EXPECT_EQ(kind_of(all_reduce(ReduceOp::None, DType::F32, nullptr, nullptr, 1)),
            ErrorKind::InvalidArgument);
  EXPECT_EQ(kind_of(broadcast(DType::F32, nullptr, nullptr, 1, 2)), ErrorKind::InvalidArgument);
  EXPECT_EQ(kind_of(broadcast(DType::F32, nullptr, nullptr, 1, -1)), ErrorKind::InvalidArgument);
  EXPECT_EQ(kind_of(all_reduce(ReduceOp::Prod, DType::Bool, nullptr, nullptr, 1)), std::nullopt);
  EXPECT_EQ(kind_of(broadcast(DType::Bool, nullptr, nullptr, 1, 1)), std::nullopt);
}

TEST(SelfCommunicator, ReturnsItsOperands) {
  const auto self = make_self_communicator();
  const float source[] = {1, 2, 3};
  float destination[3] = {};
  const Work work = self->submit(all_reduce(ReduceOp::Mean, DType::F32, source, destination, 3));
  self->wait(work, kSeconds);
  EXPECT_TRUE(self->done(work));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(destination[i], source[i]);
  const SharedBlock block = self->allocate(100);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block.data) % 64, 0u);
  self->release(block);
  self->close();
  EXPECT_EQ(outcome_of([&] { self->submit(barrier()); }).kind, ErrorKind::GroupClosed);
}

CallRecord record_of(const Collective& collective, int size = 2) {
  CallRecord record;
  record.assign(collective, size);
  return record;
}

Collective sum_of_floats() {
  Collective call;
  call.kind = Kind::AllReduce;
  call.op = ReduceOp::Sum;
  call.dtype = DType::F32;
  call.count = 3;
  call.algorithm = Algorithm::Flat;
  call.site = "a.py:1";
  return call;
}

TEST(Identity, DependsOnEveryPropertyThatMustBeEqual) {
  const std::uint64_t counts[] = {1, 2}, others[] = {2, 1};
  const Layout layout{Layout::Of::Shape, 7, 0, 0, nullptr};
  const ProgramIdentity program{5, "", 0};
  std::vector<Collective> calls(10, sum_of_floats());
  calls[1].kind = Kind::ReduceScatter;
  calls[2].op = ReduceOp::Max;
  calls[3].dtype = DType::I32;
  calls[4].count = 4;
  calls[5].algorithm = Algorithm::Ring;
  calls[6].layout = &layout;
  calls[7].program = &program;
  for (const std::size_t i : {8u, 9u}) calls[i].kind = Kind::ReduceScatter;
  calls[8].counts = counts;
  calls[9].counts = others;
  const Computations none;
  for (std::size_t a = 0; a < calls.size(); ++a)
    for (std::size_t b = 0; b < calls.size(); ++b) {
      const CallRecord mine = record_of(calls[a]), theirs = record_of(calls[b]);
      EXPECT_EQ(agree(mine, theirs, none), a == b) << a << " and " << b;
      EXPECT_EQ(mine.fingerprint(1) == theirs.fingerprint(1), a == b) << a << " and " << b;
    }
  EXPECT_NE(record_of(calls[0]).fingerprint(1), record_of(calls[0]).fingerprint(2));
}

TEST(Identity, IgnoresPropertiesWithoutAMeaning) {
  Collective a = sum_of_floats(), b = a;
  b.site = "b.py:2";
  b.root = 1;
  b.tag = 7;
  EXPECT_EQ(record_of(a).identity, record_of(b).identity);
  a.kind = b.kind = Kind::Broadcast;
  EXPECT_NE(record_of(a).identity, record_of(b).identity);  // the kind of b has a root
  b.root = a.root;
  b.op = ReduceOp::Max;
  EXPECT_EQ(record_of(a).identity, record_of(b).identity);
  a.kind = b.kind = Kind::Barrier;
  b.count = 9;
  EXPECT_EQ(record_of(a).identity, record_of(b).identity);
}

TEST(Identity, ComparesComputationsOnlyIfTheRankHasOne) {
  const ProgramIdentity first{5, "", 1}, second{5, "", 2};
  Collective a = sum_of_floats(), b = a;
  a.program = &first;
  b.program = &second;
  Computations held;
  EXPECT_TRUE(agree(record_of(a), record_of(b), held));
  EXPECT_NE(record_of(a).fingerprint(0), record_of(b).fingerprint(0));
  held.add(2);
  EXPECT_FALSE(agree(record_of(a), record_of(b), held));
}

}  // namespace
}  // namespace ngd::comm
