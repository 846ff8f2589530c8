// SPDX-License-Identifier: Apache-2.0
// Tests allocation failures: the n-th allocation of one rank fails, for every n.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <new>
#include <numeric>
#include <thread>

#include "base/attrs.hpp"
#include "comm/shm/heap.hpp"
#include "comm/stats.hpp"
#include "ranks.hpp"

namespace {

// For this thread: the number of allocations until one fails, or until all later ones fail.
thread_local int fuse = 0;
thread_local bool goes_on = false;
thread_local int failures = 0;

void* allocate(std::size_t bytes) {
  if (fuse > 0 && --fuse == 0) {
    ++failures;
    if (goes_on) fuse = 1;
    throw std::bad_alloc();
  }
  if (void* pointer = std::malloc(bytes == 0 ? 1 : bytes)) return pointer;
  throw std::bad_alloc();
}

}  // namespace

// Not inlined, because the compiler would report a mismatch of new and delete.
[[gnu::noinline]] void* operator new(std::size_t bytes) { return allocate(bytes); }
[[gnu::noinline]] void* operator new[](std::size_t bytes) { return allocate(bytes); }
[[gnu::noinline]] void operator delete(void* pointer) noexcept { std::free(pointer); }
[[gnu::noinline]] void operator delete[](void* pointer) noexcept { std::free(pointer); }
[[gnu::noinline]] void operator delete(void* pointer, std::size_t) noexcept { std::free(pointer); }
[[gnu::noinline]] void operator delete[](void* pointer, std::size_t) noexcept {
  std::free(pointer);
}

namespace ngd::comm {
namespace {

using Call = std::function<void(Communicator&)>;

// Return true if `call` failed because it had no memory.
bool without_memory(const std::function<void()>& call, int allocations, bool on) {
  fuse = allocations;
  goes_on = on;
  try {
    call();
  } catch (const std::bad_alloc&) {
    fuse = 0;
    return true;
  } catch (const Error& error) {
    fuse = 0;
    if (error.kind() != ErrorKind::OutOfMemory) throw;
    return true;
  }
  return false;
}

// Rank 0's n-th allocation in a call fails, for every n. Then either the group is closed and rank 1
// is notified of the reason, or nothing has happened and the call works when it is repeated.
void fail_each_allocation(const Call& call) {
  for (const bool on : {false, true}) {
    bool reached = true;
    for (int n = 1; reached; ++n) {
      ASSERT_LT(n, 1000);
      const auto outcomes = run_ranks(2, [&](Communicator& world) {
        const auto once = [&] { call(world); };
        const bool mine = world.rank() == 0;
        if (mine) reached = false;
        if (!without_memory(once, mine ? n : 0, on)) return void(fuse = 0);
        if (mine) reached = true;
        once();
      });
      for (const Outcome& each : outcomes) {
        if (!each.kind) continue;
        EXPECT_TRUE(each.kind == ErrorKind::GroupClosed || each.kind == ErrorKind::RemoteRank)
            << n << ": " << each.message;
        EXPECT_NE(each.message.find("memory"), std::string::npos) << n << ": " << each.message;
      }
    }
  }
}

void sum(Communicator& group, std::size_t count) {
  std::vector<std::int64_t> data(count, group.rank() + 1);
  const Collective call =
      all_reduce(ReduceOp::Sum, DType::I64, data.data(), data.data(), count, "a site that is long");
  group.wait(group.submit(call), 10);
  EXPECT_EQ(data, std::vector<std::int64_t>(count, group.size() * (group.size() + 1) / 2));
}

TEST(NoMemory, InCollectives) {
  for (const std::size_t count : {2, 3000, 300'000})
    fail_each_allocation([&](Communicator& world) {
      static thread_local std::vector<std::int64_t> data;
      data.resize(count);
      Collective gather = all_reduce(ReduceOp::None, DType::I64, data.data(), data.data(), 1);
      gather.kind = Kind::AllGather;
      world.wait(world.submit(gather), 10);
    });
}

TEST(NoMemory, InASplit) {
  std::unique_ptr<Communicator> groups[2];
  fail_each_allocation([&](Communicator& world) {
    groups[world.rank()] = world.split(0, -world.rank());
    const int before = std::exchange(fuse, 0);
    sum(*groups[world.rank()], 5);
    groups[world.rank()].reset();
    fuse = before;
  });
}

// If a rank fails, the ranks of other groups and of no group have not split either, and all repeat
// the split.
TEST(NoMemory, InASplitIntoSeveral) {
  for (const int other : {1, -1}) {
    std::unique_ptr<Communicator> groups[2];
    fail_each_allocation([&](Communicator& world) {
      const int color = world.rank() == 0 ? 0 : other;
      groups[world.rank()] = world.split(color, 0);
      const int before = std::exchange(fuse, 0);
      if (color >= 0) sum(*groups[world.rank()], 5);
      sum(world, 5);
      groups[world.rank()].reset();
      fuse = before;
    });
  }
}

TEST(NoMemory, InSends) {
  fail_each_allocation([](Communicator& world) {
    static thread_local std::int64_t data[3000] = {};
    Collective call = all_reduce(ReduceOp::None, DType::I64, data, data, 3000);
    call.kind = world.rank() == 0 ? Kind::Send : Kind::Receive;
    call.root = 1 - world.rank();
    world.wait(world.submit(call), 10);
  });
}

// Repeat until there is a world that works. Return true if an allocation failed before.
bool meet_without_memory(const std::string& key, int rank, int allocations, bool on) {
  failures = 0;
  fuse = allocations;
  goes_on = on;
  for (bool met = false; !met; fuse = 0) {
    try {
      const auto world = make_shm_communicator(key, rank, 2, 20);
      fuse = 0;
      sum(*world, 3);
      met = true;
    } catch (const std::bad_alloc&) {
    } catch (const Error& error) {
      fuse = 0;
      if (error.kind() != ErrorKind::CollectiveTimeout) continue;
      ADD_FAILURE() << "allocation " << allocations << ": " << error.what();
      return false;
    }
  }
  return failures > 0;
}

// If a rank has no memory in the rendezvous, the other rank is notified, even if its rendezvous was
// complete. Otherwise it would wait until the deadline, and the first rank would wait for it.
TEST(NoMemory, WhileRanksMeet) {
  for (const int victim : {0, 1}) {
    bool reached[2] = {};
    int n = 0;
    do {
      ++n;
      const std::string key = concat("no-memory:", ::getpid(), ":", victim, ":", n);
      const auto meet = [&](int rank) {
        reached[rank] = meet_without_memory(key, rank, rank == victim ? n : 0, n % 2 == 0);
      };
      std::thread other(meet, 1);
      meet(0);
      other.join();
    } while (reached[victim]);
    EXPECT_GT(n, 50) << "rank " << victim;
  }
}

TEST(NoMemory, LeavingAllocatesNothing) {
  const auto outcomes = run_ranks(2, [](Communicator& world) {
    auto group = world.split(0, 0);
    const SharedBlock first = world.allocate(100), second = world.allocate(100),
                      third = world.allocate(100);
    sum(*group, 5);
    fuse = 1;
    goes_on = true;
    world.release(first);
    world.release(third);
    world.release(second);
    group->close();
    group.reset();
    if (world.rank() == 0) world.abort("for a reason");
    fuse = 0;
    if (world.rank() == 1) sum(world, 5);
  });
  EXPECT_FALSE(outcomes[0].kind);
  EXPECT_EQ(outcomes[1].kind, ErrorKind::RemoteRank);
  EXPECT_EQ(outcomes[1].message, "rank 0 failed: for a reason");
}

TEST(NoMemory, AHeapLosesNoBlock) {
  struct Nothing final : shm::Memory {
    shm::Segment segment(int) const noexcept override { return {nullptr, 0}; }
    void commit(std::size_t, std::size_t) override {}
  } memory;
  constexpr std::size_t kBytes = 1 << 20;
  for (int n = 1; n < 4; ++n) {
    shm::Heap heap(memory, shm::kHeapOffset + kBytes);
    const std::uint64_t small = heap.allocate(64);
    without_memory([&] { heap.allocate(5000); }, n, false);
    fuse = 0;
    without_memory([&] { heap.allocate(64); }, n, false);
    fuse = 0;
    heap.release(small);
    heap.release(shm::kHeapOffset + 64);
    heap.release(shm::kHeapOffset + 4096);
    EXPECT_EQ(heap.allocate(kBytes), shm::kHeapOffset);
  }
}

TEST(NoMemory, StatisticsStayConsistent) {
  for (int n = 1; n < 12; ++n) {
    Statistics statistics(2);
    const std::string site(100, 'x');
    const Collective call =
        all_reduce(ReduceOp::Sum, DType::I64, nullptr, nullptr, 1, site.c_str());
    without_memory([&] { statistics.entry_of(call); }, n, false);
    fuse = 0;
    statistics.add(statistics.entry_of(call), 8, 5, 1);
    ASSERT_EQ(statistics.report().size(), 1u) << n;
    EXPECT_EQ(statistics.report()[0].calls, 1u);
  }
}

TEST(NoMemory, ACopyOfAttributesIsCompleteOrFails) {
  Attrs attrs;
  attrs.set("axis", std::int64_t{1});
  attrs.set("text", std::string(40, 'x'));
  attrs.set("axes", std::vector<std::int64_t>{1, 2, 3});
  attrs.set("posts", std::vector<std::string>{std::string(40, 'y'), "relu"});
  int n = 1;
  while (without_memory([&] { const Attrs copy(attrs); }, n, false)) ++n;
  fuse = 0;
  EXPECT_GT(n, 8);  // one node per attribute, and the contents of the last three
  EXPECT_EQ(Attrs(attrs).all(), attrs.all());
}

}  // namespace
}  // namespace ngd::comm
