// SPDX-License-Identifier: Apache-2.0
// A rank dies at each step of a run with all features: the rendezvous, every kind of collective,
// groups, sends and receives, and leaving. The other ranks get right results up to there, and are
// notified at once of the rank that died.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/step.hpp"
#include "processes.hpp"

namespace ngd::comm {
namespace {

constexpr int kRanks = 3;
constexpr std::size_t kCount = 60'000;  // several chunks if they are staged
constexpr double kDeadline = 30;        // of collectives: no surviving rank may need it
// A rank that dies before its name can be found never arrives. The other ranks wait this long for
// it.
constexpr double kMeetingSeconds = 0.4;

int step_now = 0;
int step_of_death = 0;

void die_in_time() {
  if (++step_now == step_of_death) ::kill(::getpid(), SIGKILL);
}

void expect_all(const float* values, std::size_t count, float wanted) {
  for (std::size_t i = 0; i < count; ++i)
    if (values[i] != wanted)
      throw std::runtime_error(concat("expected ", wanted, "; got ", values[i], " at ", i));
}

// The rank's data: its rank + 1 in each element.
class Run {
 public:
  explicit Run(Communicator& world)
      : world_(world), block_(world.allocate(kCount * sizeof(float))) {}

  void everything() {
    for (const std::size_t count : {std::size_t{3}, kCount}) all_kinds(world_, count);
    reduce(world_, Algorithm::Ring, kCount, own_.data());
    several_at_once();
    sends(3);
    sends(kCount);
    groups();
    reduce(world_, Algorithm::Auto, 3, own_.data());
    world_.release(block_);
    world_.close();
  }

 private:
  float total(const Communicator& group) const {
    return first(group) * static_cast<float>(group.size()) + pairs(group);
  }
  // The sum over the ranks of a group, which are consecutive in the world.
  static float pairs(const Communicator& group) {
    return static_cast<float>(group.size() * (group.size() - 1)) / 2;
  }
  float first(const Communicator& group) const {
    return static_cast<float>(world_.rank() - group.rank() + 1);
  }
  float mine() const { return static_cast<float>(world_.rank() + 1); }

  void finish(Communicator& group, const Collective& call) {
    group.wait(group.submit(call), kDeadline);
  }

  void reduce(Communicator& group, Algorithm algorithm, std::size_t count, float* data) {
    std::fill_n(data, count, mine());
    Collective call = all_reduce(ReduceOp::Sum, DType::F32, data, data, count);
    call.algorithm = algorithm;
    finish(group, call);
    expect_all(data, count, total(group));
  }

  void all_kinds(Communicator& group, std::size_t count) {
    auto* shared = static_cast<float*>(block_.data);
    for (float* data : {own_.data(), shared}) {
      reduce(group, Algorithm::Flat, count, data);
      const float root = first(group);
      std::fill_n(data, count, mine());
      finish(group, broadcast(DType::F32, data, data, count, 0));
      expect_all(data, count, root);
      exchange(group, Kind::AllGather, data, count);
      exchange(group, Kind::ReduceScatter, data, count);
      exchange(group, Kind::AllToAll, data, count);
      exchange(group, Kind::Gather, data, count);
      exchange(group, Kind::Scatter, data, count);
      exchange(group, Kind::Reduce, data, count);
    }
    finish(group, barrier());
  }

  // Checks only that it ends. Other tests check the result.
  void exchange(Communicator& group, Kind kind, float* data, std::size_t count) {
    std::fill_n(data, count, mine());
    Collective call = all_reduce(ReduceOp::Sum, DType::F32, data, other_.data(), count);
    call.kind = kind;
    if (!reduces(kind)) call.op = ReduceOp::None;
    if (has_blocks(kind)) call.count = count / static_cast<std::size_t>(group.size());
    finish(group, call);
  }

  void several_at_once() {
    std::vector<Work> works;
    std::vector<float> values(80, mine());  // more than there are slots
    for (float& value : values)
      works.push_back(world_.submit(all_reduce(ReduceOp::Sum, DType::F32, &value, &value, 1)));
    for (const Work work : works) world_.wait(work, kDeadline);
    expect_all(values.data(), values.size(), total(world_));
  }

  void sends(std::size_t count) {
    const int size = world_.size(), rank = world_.rank();
    std::fill_n(own_.data(), count, mine());
    Collective send = all_reduce(ReduceOp::None, DType::F32, own_.data(), nullptr, count);
    send.kind = Kind::Send;
    send.root = (rank + 1) % size;
    Collective receive = all_reduce(ReduceOp::None, DType::F32, nullptr, other_.data(), count);
    receive.kind = Kind::Receive;
    receive.root = (rank + size - 1) % size;
    const Work sent = world_.submit(send), received = world_.submit(receive);
    world_.wait(sent, kDeadline);
    world_.wait(received, kDeadline);
    expect_all(other_.data(), count, static_cast<float>(receive.root + 1));
  }

  void groups() {
    const auto all = world_.split(0, 0);
    all_kinds(*all, 3);
    const auto part = all->split(world_.rank() == 0 ? 0 : 1, 0);  // of one rank, and of two
    all_kinds(*part, kCount);
    part->close();
    all->close();
  }

  Communicator& world_;
  SharedBlock block_;
  std::vector<float> own_ = std::vector<float>(kCount), other_ = std::vector<float>(kCount);
};

// Check the ends of all ranks except `victim` within a second or `more`. Return true if it died.
template <typename Check>
bool look_at_others(std::vector<Child>& children, int victim, int step, double more, Check check) {
  const bool died = children[static_cast<std::size_t>(victim)].outcome().message == "dead";
  const auto start = Clock::now();
  const std::string name = "rank " + std::to_string(victim);
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == victim) continue;
    SCOPED_TRACE(concat("rank ", rank, " when ", name, " died at step ", step));
    check(children[static_cast<std::size_t>(rank)].outcome(), died, name);
  }
  EXPECT_LT(seconds_since(start), 1 + more) << name << " at step " << step;
  return died;
}

// The error must be that `victim` was lost, or was too late to be found.
void expect_the_loss(const Outcome& outcome, bool died, const std::string& victim) {
  if (!outcome.kind) {  // needed nothing more of the dead rank
    EXPECT_EQ(outcome.message, "");
    return;
  }
  EXPECT_TRUE(died) << outcome.message;
  const bool never_came =
      outcome.kind == ErrorKind::CollectiveTimeout && outcome.message.find("ngd.init: ") == 0;
  EXPECT_TRUE(outcome.kind == ErrorKind::RankLost || never_came) << outcome.message;
  const bool named = outcome.message.find(victim) != std::string::npos;
  EXPECT_TRUE(named || (never_came && outcome.message.find("ngd.init: rank 0 ") == 0))
      << outcome.message;
}

// Check a run in which `victim` dies at `step`. Return false if it has fewer steps.
bool dies_at(const std::string& key, int victim, int step) {
  std::vector<Child> children;
  for (int rank = 0; rank < kRanks; ++rank)
    children.emplace_back([=] {
      step_of_death = step;
      if (rank == victim) step_hook = die_in_time;
      const auto world = make_shm_communicator(key, rank, kRanks, kMeetingSeconds);
      Run(*world).everything();
    });
  return look_at_others(children, victim, step, kMeetingSeconds, expect_the_loss);
}

// The same, in a run in which the ranks that have completed the rendezvous wait for the reports of
// the others.
bool dies_meeting_at(const std::string& key, int victim, int step) {
  std::vector<Child> children;
  for (int rank = 0; rank < kRanks; ++rank)
    children.emplace_back([=] {
      step_of_death = step;
      if (rank == victim) step_hook = die_in_time;
      const auto world = make_shm_communicator(key, rank, kRanks, kMeetingSeconds);
      if (rank != victim) std::this_thread::sleep_for(std::chrono::milliseconds(50));
      world->wait(world->submit(barrier()), kDeadline);
      world->close();
    });
  return look_at_others(children, victim, step, kMeetingSeconds, expect_the_loss);
}

// Check the ranks that wait for `victim`, which fails, and dies at that step of reporting it.
bool dies_failing_at(const std::string& key, int victim, int step) {
  std::vector<Child> children;
  for (int rank = 0; rank < kRanks; ++rank)
    children.emplace_back([=] {
      const auto world = make_shm_communicator(key, rank, kRanks, kDeadline);
      float value = 1;
      const Collective call = all_reduce(ReduceOp::Sum, DType::F32, &value, &value, 1);
      world->wait(world->submit(call), kDeadline);
      if (rank == victim) {
        step_of_death = step;
        step_hook = die_in_time;
        world->abort("broken");
      } else {
        world->wait(world->submit(call), kDeadline);
      }
    });
  const auto check = [](const Outcome& outcome, bool died, const std::string& name) {
    const bool told = outcome.kind == ErrorKind::RemoteRank &&
                      outcome.message.find("broken") != std::string::npos;
    EXPECT_TRUE(told || (died && outcome.kind == ErrorKind::RankLost)) << outcome.message;
    EXPECT_NE(outcome.message.find(name), std::string::npos) << outcome.message;
  };
  return look_at_others(children, victim, step, 0, check);
}

class DeathAtEachStep : public testing::TestWithParam<int> {};

TEST_P(DeathAtEachStep, OfAFailureIsNoticedByTheOthers) {
  const std::string key = new_key();
  int step = 1;
  while (dies_failing_at(key, GetParam(), step) && !HasFailure()) ++step;
  EXPECT_GT(step, 2) << "a failure has lost its steps";
}

TEST_P(DeathAtEachStep, OfAMeetingIsNoticedByWhoIsThrough) {
  const std::string key = new_key();
  int step = 1;
  while (dies_meeting_at(key, GetParam(), step) && !HasFailure()) ++step;
  EXPECT_GT(step, 10) << "a meeting has lost its steps";
}

// A prime stride visits other steps with each victim. NGD_EVERY_STEP=1 visits all.
TEST_P(DeathAtEachStep, IsNoticedByTheOthers) {
  const int victim = GetParam();
  const bool all = std::getenv("NGD_EVERY_STEP") != nullptr;
  const int stride = all ? 1 : 7;
  // One for all runs, because a run must leave nothing that affects the next one.
  const std::string key = new_key();
  int step = all ? 1 : 1 + victim, runs = 0;
  for (; dies_at(key, victim, step); step += stride) {
    ++runs;
    ASSERT_FALSE(HasFailure()) << "victim " << victim << ", step " << step;
  }
  EXPECT_GT(step, 300) << "the run has lost its steps";
  RecordProperty("runs", runs);
  std::printf("rank %d: %d deaths, of about %d steps\n", victim, runs, step - 1);
}

INSTANTIATE_TEST_SUITE_P(OfRank, DeathAtEachStep, testing::Range(0, kRanks));

}  // namespace
}  // namespace ngd::comm
