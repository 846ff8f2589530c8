// SPDX-License-Identifier: Apache-2.0
#include "comm/collective.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "comm/communicator.hpp"
#include "ranks.hpp"

namespace ngd::comm {
namespace {

TEST(Collective, NamesGoBothWays) {
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

TEST(Collective, WhatNobodyCanDoIsRefused) {
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

TEST(SelfCommunicator, IsTheIdentity) {
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

}  // namespace
}  // namespace ngd::comm
