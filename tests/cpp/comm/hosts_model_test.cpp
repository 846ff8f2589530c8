// SPDX-License-Identifier: Apache-2.0
// Tests the transfers between hosts over an MPI that the test controls (fake_mpi.hpp). The ranks
// are threads, and those of a host share memory.
//
// Every submission to a host's shared memory is refused once, all of them or one at a time. The
// data must be right, and the ranks must send exactly the messages that they send when nothing is
// refused. MPI fails at every call in turn. Then no memory may be freed while MPI uses it.
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <random>
#include <thread>

#include "comm/hierarchical/hosts.hpp"
#include "comm/mpi/mpi_communicator.hpp"
#include "fake_mpi.hpp"
#include "model.hpp"
#include "ranks.hpp"

namespace {

ngd::comm::FakeMpi fake;
std::atomic<bool> watching{false};  // if frees are watched
std::atomic<int> freed_too_early{0};

void watch_free(const void* data, std::size_t bytes) {
  if (watching && fake.holds(data, bytes)) ++freed_too_early;
}

}  // namespace

// Fails if memory is freed while MPI may write to it, even without AddressSanitizer.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  if (void* data = std::malloc(bytes != 0 ? bytes : 1)) return data;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* data) noexcept {
  if (watching && data != nullptr) {
    // The fake also allocates, and must not check itself.
    thread_local bool inside = false;
    if (!inside) {
      inside = true;
      const std::size_t bytes = ::malloc_usable_size(data);
      if (bytes >= 4096) watch_free(data, bytes);
      inside = false;
    }
  }
  std::free(data);
}
[[gnu::noinline]] void operator delete(void* data, std::size_t) noexcept { operator delete(data); }

namespace ngd::comm {

const mpi::Library& mpi::library() { return fake; }

namespace {

// The ranks of a host. Submissions can be refused, as if another thread were inside.
class RefusingGroup final : public Communicator {
 public:
  enum class Refuses { Nothing, Everything, One };
  explicit RefusingGroup(std::unique_ptr<Communicator> group)
      : Communicator(group->membership()), group_(std::move(group)) {}

  void refuse(Refuses what, int number = -1) {
    refuses_ = what;
    number_ = number;
    submitted_ = 0;
    refused_last_ = false;
  }
  int submitted() const { return submitted_; }

  std::optional<Work> try_submit(const Collective& collective) override {
    const bool due =
        refuses_ == Refuses::Everything || (refuses_ == Refuses::One && submitted_ == number_);
    if (due && !refused_last_) {
      refused_last_ = true;
      return std::nullopt;
    }
    refused_last_ = false;
    ++submitted_;
    return group_->try_submit(collective);
  }
  Progress try_wait(Work work, const WaitLimits& limits) override {
    // About every second look is refused too, without a pattern that would always affect the same
    // work.
    if (limits.patience_seconds == 0 && refuses_ != Refuses::Nothing && (random_() & 1) != 0)
      return Progress::Busy;
    return group_->try_wait(work, limits);
  }
  std::optional<std::unique_ptr<Communicator>> try_split(int color, int key) override {
    return group_->try_split(color, key);
  }
  SharedBlock allocate(std::size_t bytes) override { return group_->allocate(bytes); }
  void release(SharedBlock block) noexcept override {
    watch_free(block.data, block.bytes);
    group_->release(block);
  }
  bool is_over() const noexcept override { return group_->is_over(); }
  void give_up(ErrorKind kind, std::string_view why, std::span<const int> ranks) noexcept override {
    group_->give_up(kind, why, ranks);
  }
  void close() noexcept override { group_->close(); }

 private:
  const std::unique_ptr<Communicator> group_;
  Refuses refuses_ = Refuses::Nothing;
  int number_ = -1;
  int submitted_ = 0;
  std::minstd_rand random_;
  bool refused_last_ = false;
};

// A job of `hosts` hosts of `per_host` ranks.
class Job {
 public:
  Job(int hosts, int per_host) : per_host_(per_host) {
    const int size = hosts * per_host;
    const std::vector<mpi::Comm> comms = fake.start(size);
    for (int host = 0; host < hosts; ++host) {
      auto roster = std::make_shared<hierarchical::Roster>();
      for (int r = 0; r < size; ++r) roster->host_of.push_back(r / per_host);
      for (int r = 0; r < per_host; ++r) roster->here.push_back(host * per_host + r);
      for (auto& local : shm::make_thread_ranks(per_host, {}, shm::JobRanks(roster->here))) {
        auto refusing = std::make_unique<RefusingGroup>(std::move(local));
        refusing_.push_back(refusing.get());
        const int rank = host * per_host + refusing->rank();
        const mpi::Endpoint endpoint{comms[static_cast<std::size_t>(rank)], rank, size,
                                     rank % per_host, per_host};
        auto world =
            std::make_unique<mpi::MpiCommunicator>(std::make_shared<mpi::Family>(endpoint));
        world->use(std::make_unique<hierarchical::Hosts>(world->context().ranks, roster,
                                                         std::move(refusing)));
        ranks_.push_back(std::move(world));
      }
    }
  }
  ~Job() {
    run_ranks(ranks_, [](Communicator& world) { world.close(); });
  }

  std::vector<std::unique_ptr<Communicator>>& ranks() { return ranks_; }
  RefusingGroup& local(int rank) { return *refusing_[static_cast<std::size_t>(rank)]; }
  int size() const { return static_cast<int>(ranks_.size()); }

 private:
  const int per_host_;
  std::vector<RefusingGroup*> refusing_;
  std::vector<std::unique_ptr<Communicator>> ranks_;
};

struct Shape {
  int hosts, per_host;
};
constexpr Shape kShapes[] = {{2, 2}, {3, 2}, {2, 3}};
constexpr int kAtOnce = mpi::kActive + 1;  // more than may be active at once
constexpr double kWait = 30;

// Arrays that outlive every failure, so that only the engine frees memory.
struct Arrays {
  Arrays(Model& model, int rank)
      : source(model.source(rank)),
        destination(model.destination(rank).size(), std::byte{0xee}),
        call(model.collective(rank)) {
    call.source = source.data();
    call.destination = destination.data();
  }
  Bytes source, destination;
  Collective call;
};

std::vector<Case> cases(int ranks) {
  const auto all = static_cast<std::size_t>(ranks);
  std::vector<std::uint64_t> counts(all * all);
  for (std::size_t p = 0; p < all; ++p)
    for (std::size_t r = 0; r < all; ++r) counts[p * all + r] = r % 2 == 0 ? 60'000 : 30'001;
  std::vector<Case> result{{Kind::AllReduce, ReduceOp::Mean, DType::BF16, 300'001},
                           {Kind::AllReduce, ReduceOp::Sum, DType::F32, 200'000},
                           {Kind::ReduceScatter, ReduceOp::Sum, DType::F32, 60'000},
                           {Kind::ReduceScatter, ReduceOp::Max, DType::I32, 0, 0, counts},
                           {Kind::AllGather, ReduceOp::None, DType::F32, 60'000},
                           {Kind::AllGather, ReduceOp::None, DType::I16, 0, 0, counts}};
  for (int root = 0; root < ranks; ++root)
    result.push_back({Kind::Broadcast, ReduceOp::None, DType::I32, 300'000, root});
  return result;
}

// Collectives of one kind, and the expected result of each rank.
struct Calls {
  Calls(const Case& each, int ranks, int number) {
    for (int i = 0; i < number; ++i) {
      models.emplace_back(each, ranks, static_cast<unsigned>(i));
      results.emplace_back();
      for (int r = 0; r < ranks; ++r) results.back().push_back(models.back().destination(r));
    }
  }
  std::vector<Model> models;
  std::vector<std::vector<Bytes>> results;
};

// Run the calls with the refusals that `prepare` sets. Return the messages that the ranks sent.
template <class Prepare>
std::map<FakeMpi::Route, int> sent_for(Job& job, Calls& calls, Prepare&& prepare) {
  for (int r = 0; r < job.size(); ++r) job.local(r).refuse(RefusingGroup::Refuses::Nothing);
  prepare();
  fake.forget_sent();
  std::vector<std::vector<std::unique_ptr<Arrays>>> arrays(static_cast<std::size_t>(job.size()));
  for (int r = 0; r < job.size(); ++r)
    for (Model& model : calls.models)
      arrays[static_cast<std::size_t>(r)].push_back(std::make_unique<Arrays>(model, r));
  const std::vector<Outcome> outcomes = run_ranks(job.ranks(), [&](Communicator& world) {
    const auto& mine = arrays[static_cast<std::size_t>(world.rank())];
    std::vector<Work> works;
    for (const auto& each : mine) works.push_back(world.submit(each->call));
    for (const Work work : works) world.wait(work, kWait);
    for (std::size_t i = 0; i < mine.size(); ++i)
      check(mine[i]->destination == calls.results[i][static_cast<std::size_t>(world.rank())],
            "rank ", world.rank(), ": wrong data in number ", i);
  });
  for (const Outcome& outcome : outcomes) EXPECT_FALSE(outcome.kind) << outcome.message;
  EXPECT_EQ(fake.unreceived(mpi::kFirstDataTag), 0);
  return fake.sent();
}

void refuse_everything(Job& job, Calls& calls) {
  const auto expected = sent_for(job, calls, [] {});
  const auto sent = sent_for(job, calls, [&] {
    for (int r = 0; r < job.size(); ++r) job.local(r).refuse(RefusingGroup::Refuses::Everything);
  });
  EXPECT_EQ(sent, expected) << "every submission refused once";
}

void refuse_one_at_a_time(Job& job, Calls& calls) {
  const auto expected = sent_for(job, calls, [] {});
  const int submissions = job.local(0).submitted();
  ASSERT_GT(submissions, 0);
  for (int number = 0; number < submissions && !::testing::Test::HasFailure(); ++number) {
    const auto sent =
        sent_for(job, calls, [&] { job.local(0).refuse(RefusingGroup::Refuses::One, number); });
    EXPECT_EQ(sent, expected) << "submission " << number << " of rank 0 refused";
  }
}

std::string title(Shape shape, const Case& each) {
  return concat(shape.hosts, " x ", shape.per_host, ": ", name_of(each.kind), ", root ", each.root);
}

TEST(BetweenHosts, ARefusedSubmissionHasNoEffect) {
  for (const Shape shape : kShapes) {
    Job job(shape.hosts, shape.per_host);
    for (const Case& each : cases(job.size())) {
      // The model sums in the order of one host, which hosts of three ranks do not keep.
      const bool rounds = each.dtype == DType::F32 || each.dtype == DType::BF16;
      if (shape.per_host == 3 && reduces(each.kind) && rounds) continue;
      SCOPED_TRACE(title(shape, each));
      Calls calls(each, job.size(), kAtOnce);
      refuse_everything(job, calls);
      if (HasFailure()) return;
    }
  }
}

TEST(BetweenHosts, ARefusedSubmissionHasNoEffectAtAnyStep) {
  constexpr Shape kPairs{2, 2};
  Job job(kPairs.hosts, kPairs.per_host);
  for (const Case& each : cases(job.size())) {
    if (each.dtype == DType::F32 || each.root % 3 != 0) continue;  // one of each kind
    SCOPED_TRACE(title(kPairs, each));
    Calls calls(each, job.size(), 1);
    refuse_one_at_a_time(job, calls);
    if (HasFailure()) return;
  }
}

// Several windows per staging buffer.
TEST(BetweenHosts, ARefusedSubmissionHasNoEffectInALongCollective) {
  Job job(2, 2);
  for (const Case& each : {Case{Kind::AllReduce, ReduceOp::Sum, DType::I8, 9'000'000},
                           Case{Kind::Broadcast, ReduceOp::None, DType::I8, 5'000'000, 1}}) {
    SCOPED_TRACE(name_of(each.kind));
    Calls calls(each, job.size(), 1);
    refuse_everything(job, calls);
    if (HasFailure()) return;
  }
}

// Run one collective in which look `number` of a rank at its messages fails. Return true if the
// collective made that look.
bool fail_at(const Case& each, int rank, long number) {
  Job job(2, 2);
  Calls calls(each, job.size(), 1);
  std::vector<std::unique_ptr<Arrays>> arrays;
  for (int r = 0; r < job.size(); ++r)
    arrays.push_back(std::make_unique<Arrays>(calls.models.front(), r));
  const long first = fake.tests(rank);
  fake.fail_test(rank, first + number);
  watching = true;
  const std::vector<Outcome> outcomes = run_ranks(job.ranks(), [&](Communicator& world) {
    const Collective& call = arrays[static_cast<std::size_t>(world.rank())]->call;
    world.wait(world.submit(call), kWait);
  });
  const bool failed = outcomes[static_cast<std::size_t>(rank)].kind.has_value();
  run_ranks(job.ranks(), [](Communicator& world) { world.close(); });
  watching = false;
  EXPECT_EQ(freed_too_early, 0) << "memory was freed while MPI could write there";
  return failed;
}

// The maximum number of looks of a rank at its messages in one collective.
constexpr long kMostLooks = 400;

TEST(BetweenHosts, NoMemoryIsFreedBeforeItsMessagesEnd) {
  fake.oblige(true);
  for (const Kind kind : {Kind::ReduceScatter, Kind::AllReduce, Kind::AllGather, Kind::Broadcast,
                          Kind::AllToAll, Kind::Reduce}) {
    SCOPED_TRACE(name_of(kind));
    const bool sums = reduces(kind);
    const Case each{kind, sums ? ReduceOp::Sum : ReduceOp::None, DType::I32, 60'000};
    for (long number = 0; number < kMostLooks; number += 1 + number / 4)
      if (!fail_at(each, 3, number) || HasFailure()) break;
    if (HasFailure()) return;
  }
}

// A transfer that fails has submitted collectives to its host group. The caller may free their
// operands, so the host group must fail too. Each call makes another look of a rank fail.
bool fail_host_groups_at(const Case& each, long number) {
  Job job(2, 2);
  Calls calls(each, job.size(), 1);
  constexpr int kFailing = 3;
  fake.fail_test(kFailing, fake.tests(kFailing) + number);
  std::atomic<bool> failed{false};
  const std::vector<Outcome> outcomes = run_ranks(job.ranks(), [&](Communicator& world) {
    Arrays arrays(calls.models.front(), world.rank());
    const Outcome outcome = outcome_of([&] { world.wait(world.submit(arrays.call), kWait); });
    if (!outcome.kind) return;  // this rank had all that it needed
    failed = true;
    const Bytes reused(arrays.destination.size(), std::byte{0x5a});
    arrays.destination = reused;
    Communicator& local = job.local(world.rank());
    check(local.is_over(), "rank ", world.rank(), " failed; its host group did not");
    const Outcome after = outcome_of([&] { local.wait(local.submit(barrier()), kWait); });
    check(after.kind == ErrorKind::GroupClosed, "a failed host group took a collective");
    check(arrays.destination == reused, "memory was written after its collective had failed");
  });
  for (const Outcome& outcome : outcomes) EXPECT_FALSE(outcome.kind) << outcome.message;
  return failed;
}

TEST(BetweenHosts, AFailureOverMpiFailsTheHostGroup) {
  fake.oblige(true);
  for (const Kind kind : {Kind::ReduceScatter, Kind::AllReduce, Kind::AllGather, Kind::Broadcast}) {
    SCOPED_TRACE(name_of(kind));
    const ReduceOp op = reduces(kind) ? ReduceOp::Sum : ReduceOp::None;
    const Case each{kind, op, DType::I32, 60'000};
    for (long number = 0; number < kMostLooks; number += 1 + number / 4)
      if (!fail_host_groups_at(each, number) || HasFailure()) break;
    if (HasFailure()) return;
  }
}

// Return each rank's group of its host.
std::vector<std::unique_ptr<Communicator>> split_into_hosts(Job& job, int per_host) {
  std::vector<std::unique_ptr<Communicator>> hosts(static_cast<std::size_t>(job.size()));
  for (const Outcome& outcome : run_ranks(job.ranks(), [&](Communicator& world) {
         hosts[static_cast<std::size_t>(world.rank())] = world.split(world.rank() / per_host, 0);
       }))
    EXPECT_FALSE(outcome.kind) << outcome.message;
  return hosts;
}

// The wait is inside shared memory when another thread of the rank detects the failure.
TEST(BetweenHosts, AFailureOverMpiEndsAWaitInAGroupOfOneHost) {
  fake.oblige(true);
  Job job(2, 2);
  const auto hosts = split_into_hosts(job, 2);
  std::atomic<bool> waits{false};
  hosts[0]->set_interrupt([&] {  // called without the lock, so the other thread can take it
    waits = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return false;
  });
  Outcome ended;
  std::thread waiting(
      [&] { ended = outcome_of([&] { hosts[0]->wait(hosts[0]->submit(barrier()), kWait); }); });
  while (!waits) std::this_thread::yield();
  fake.fail_test(3, fake.tests(3) + 10);
  Calls calls({Kind::AllReduce, ReduceOp::Sum, DType::I32, 300'000}, job.size(), 1);
  const auto start = std::chrono::steady_clock::now();
  const std::vector<Outcome> outcomes = run_ranks(job.ranks(), [&](Communicator& world) {
    Arrays arrays(calls.models.front(), world.rank());
    world.wait(world.submit(arrays.call), kWait);
  });
  waiting.join();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  for (const Outcome& outcome : outcomes) EXPECT_TRUE(outcome.kind);
  EXPECT_TRUE(ended.kind);
  EXPECT_LT(seconds.count(), kWait / 2) << "the wait ended at its deadline";
  for (const auto& host : hosts) EXPECT_TRUE(host->is_over());
  for (const auto& host : hosts) host->close();
}

// Errors name ranks by their numbers in the job. Similar words in a traceback belong to the user.
TEST(BetweenHosts, ATracebackThatNamesRanksIsNotEdited) {
  fake.oblige(true);
  constexpr std::string_view kTraceback = "ValueError: rank 007 matrix, rank 1 tensor, rank 3";
  Job job(2, 2);
  const auto hosts = split_into_hosts(job, 2);
  const std::vector<Outcome> outcomes = run_ranks(job.ranks(), [&](Communicator& world) {
    if (world.rank() == 3) return hosts[3]->abort(kTraceback);
    Communicator& group = world.rank() == 2 ? *hosts[2] : world;
    group.wait(group.submit(barrier()), kWait);
  });
  for (int rank = 0; rank < 3; ++rank) {
    const Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
    EXPECT_EQ(outcome.kind, ErrorKind::RemoteRank) << outcome.message;
    EXPECT_NE(outcome.message.find(kTraceback), std::string::npos) << outcome.message;
    EXPECT_NE(outcome.message.find("rank 3 failed"), std::string::npos) << outcome.message;
  }
}

TEST(BetweenHosts, ACallSiteThatNamesRanksIsNotEdited) {
  fake.oblige(true);
  Job job(2, 2);
  const auto hosts = split_into_hosts(job, 2);
  const std::vector<Outcome> outcomes = run_ranks(job.ranks(), [&](Communicator& world) {
    if (world.rank() < 2) return;
    Collective call = barrier();
    if (world.rank() == 3) call.kind = Kind::AllGather;
    call.site = "rank 1.py:7";
    Communicator& group = *hosts[static_cast<std::size_t>(world.rank())];
    group.wait(group.submit(call), kWait);
  });
  for (const std::size_t rank : {2u, 3u}) {
    const std::string& message = outcomes[rank].message;
    EXPECT_EQ(outcomes[rank].kind, ErrorKind::CollectiveMismatch) << message;
    EXPECT_EQ(message.rfind("rank 2 and rank 3 called different collectives", 0), 0u) << message;
    EXPECT_NE(message.find("  rank 2: barrier at rank 1.py:7"), std::string::npos) << message;
    EXPECT_NE(message.find("at rank 1.py:7\n  rank 3: all_gather"), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace ngd::comm
