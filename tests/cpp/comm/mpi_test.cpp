// SPDX-License-Identifier: Apache-2.0
// Every rank of an mpirun runs all of these tests in the same order. Without mpirun there is one
// rank.
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "comm/communicator.hpp"
#include "comm/mpi/process.hpp"
#include "comm/mpi/requests.hpp"
#include "tally.hpp"

namespace ngd::comm {
namespace {

constexpr double kTimeout = 60;

// Contribution i of a rank: small integers if sums and products must be exact, real numbers
// otherwise.
template <class T>
T contribution(int rank, std::size_t i) {
  std::uint64_t x = (i + 1) * 0x9e3779b97f4a7c15ull +
                    static_cast<std::uint64_t>(rank + 1) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 29)) * 0x94d049bb133111ebull;
  x ^= x >> 32;
  if constexpr (std::is_same_v<T, bool>) {
    return (x & 1) != 0;
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(x);
  } else if constexpr (std::is_same_v<T, double>) {
    return std::ldexp(static_cast<double>(x >> 12), -50) - 2.0;
  } else {
    return T(std::ldexp(static_cast<float>(x >> 45), -17) - 2.0f);
  }
}

template <class T>
auto arithmetic(T value) {
  if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    return static_cast<std::make_unsigned_t<T>>(value);
  } else if constexpr (std::is_class_v<T>) {
    return static_cast<float>(value);
  } else {
    return value;
  }
}

template <class T, class A>
A combine(ReduceOp op, A a, A b) {
  switch (op) {
    case ReduceOp::Min:
      return static_cast<T>(b) < static_cast<T>(a) ? b : a;
    case ReduceOp::Max:
      return static_cast<T>(a) < static_cast<T>(b) ? b : a;
    case ReduceOp::Prod:
      return static_cast<A>(a * b);
    default:
      return static_cast<A>(a + b);
  }
}

// The canonical order, implemented again: the left subtree has the largest power of two below n.
template <class T, class A>
A tree(ReduceOp op, const A* terms, int n) {
  using Order = std::conditional_t<std::is_class_v<T>, float, T>;
  if (n == 1) return terms[0];
  int left = 1;
  while (left * 2 < n) left *= 2;
  return combine<Order>(op, tree<T>(op, terms, left), tree<T>(op, terms + left, n - left));
}

template <class T>
T expected(ReduceOp op, int size, std::size_t i) {
  std::vector<decltype(arithmetic(T{}))> terms;
  if constexpr (std::is_same_v<T, bool>) {
    bool any = false, all = true;
    for (int r = 0; r < size; ++r) {
      any = any || contribution<T>(r, i);
      all = all && contribution<T>(r, i);
    }
    return op == ReduceOp::Max ? any : all;
  } else {
    for (int r = 0; r < size; ++r) terms.push_back(arithmetic(contribution<T>(r, i)));
    auto result = tree<T>(op, terms.data(), size);
    if (op == ReduceOp::Mean)
      result = static_cast<decltype(result)>(result / static_cast<decltype(result)>(size));
    return T(result);
  }
}

template <class T>
bool same_bits(T a, T b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

class Mpi : public ::testing::Test {
 protected:
  void SetUp() override { comm_ = make_mpi_communicator(-1, kTimeout); }
  void TearDown() override { comm_->close(); }

  int rank() const { return comm_->rank(); }
  int size() const { return comm_->size(); }

  void run(const Collective& collective) { comm_->wait(comm_->submit(collective), kTimeout); }
  void barrier() { run(Collective{}); }

  Collective all_reduce(std::vector<float>& data, const char* site = "") const {
    Collective c;
    c.kind = Kind::AllReduce;
    c.op = ReduceOp::Sum;
    c.dtype = DType::F32;
    c.count = data.size();
    c.source = c.destination = data.data();
    c.site = site;
    return c;
  }

  // Return the error of a collective.
  void expect_error(ErrorKind kind, const Collective& collective,
                    const std::vector<std::string>& words, double timeout = kTimeout) {
    try {
      comm_->wait(comm_->submit(collective), timeout);
      ADD_FAILURE() << "rank " << rank() << " saw no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), kind) << error.what();
      for (const std::string& word : words)
        EXPECT_NE(std::string(error.what()).find(word), std::string::npos)
            << "no '" << word << "' in: " << error.what();
    }
    EXPECT_THROW(comm_->submit(collective), Error);
  }

  template <class T>
  void check_all_reduce(ReduceOp op, std::size_t count, Algorithm algorithm, bool in_place) {
    std::vector<T> source(count), separate(count);
    std::unique_ptr<bool[]> bools(new bool[count + 1]);
    Collective c;
    c.kind = Kind::AllReduce;
    c.op = op;
    c.dtype = dtype_of<T>();
    c.count = count;
    c.algorithm = algorithm;
    if constexpr (std::is_same_v<T, bool>) {
      for (std::size_t i = 0; i < count; ++i) bools[i] = contribution<T>(rank(), i);
      c.source = c.destination = bools.get();
      run(c);
      for (std::size_t i = 0; i < count; ++i)
        ASSERT_EQ(bools[i], expected<T>(op, size(), i)) << "element " << i;
    } else {
      for (std::size_t i = 0; i < count; ++i) source[i] = contribution<T>(rank(), i);
      std::vector<T>& result = in_place ? source : separate;
      c.source = source.data();
      c.destination = result.data();
      run(c);
      const bool exact = algorithm != Algorithm::Ring || std::is_integral_v<T> ||
                         op == ReduceOp::Min || op == ReduceOp::Max || size() <= 2;
      for (std::size_t i = 0; i < count; ++i) {
        const T want = expected<T>(op, size(), i);
        if (exact) {
          ASSERT_TRUE(same_bits(result[i], want)) << "element " << i << " of " << count;
        } else {
          check_near<T>(result[i], want);
        }
      }
    }
  }

  // Two orders of summing n terms of at most 2 differ by at most n^2 roundings of a sum below 2 n
  // (of a product below 2^n). The last rounding is in T.
  template <class T>
  void check_near(T got, T want) {
    if constexpr (!std::is_integral_v<T>) {
      const double unit = dtype_of<T>() == DType::F64    ? 0x1p-52
                          : dtype_of<T>() == DType::F16  ? 0x1p-10
                          : dtype_of<T>() == DType::BF16 ? 0x1p-7
                                                         : 0x1p-23;
      const double n = size();
      ASSERT_NEAR(static_cast<double>(arithmetic(got)), static_cast<double>(arithmetic(want)),
                  n * n * std::exp2(n) * unit);
    }
  }

  template <class T>
  static DType dtype_of() {
    if constexpr (std::is_same_v<T, bool>) return DType::Bool;
    if constexpr (std::is_same_v<T, std::int8_t>) return DType::I8;
    if constexpr (std::is_same_v<T, std::int16_t>) return DType::I16;
    if constexpr (std::is_same_v<T, std::int32_t>) return DType::I32;
    if constexpr (std::is_same_v<T, std::int64_t>) return DType::I64;
    if constexpr (std::is_same_v<T, std::uint8_t>) return DType::U8;
    if constexpr (std::is_same_v<T, std::uint16_t>) return DType::U16;
    if constexpr (std::is_same_v<T, std::uint32_t>) return DType::U32;
    if constexpr (std::is_same_v<T, std::uint64_t>) return DType::U64;
    if constexpr (std::is_same_v<T, Float16>) return DType::F16;
    if constexpr (std::is_same_v<T, BFloat16>) return DType::BF16;
    if constexpr (std::is_same_v<T, float>) return DType::F32;
    return DType::F64;
  }

  std::unique_ptr<Communicator> comm_;
};

TEST_F(Mpi, HasTheExpectedRankAndSize) {
  EXPECT_EQ(comm_->name(), "mpi");
  EXPECT_LT(rank(), size());
  EXPECT_EQ(comm_->local_size(), size());  // the tests run on one host
  EXPECT_EQ(comm_->local_rank(), rank());
  EXPECT_NE(mpi_version().find("Open MPI"), std::string::npos);
}

TEST_F(Mpi, AllReducesEveryDtypeAndOp) {
  for (int d = 0; d < kDTypeCount; ++d) {
    for (ReduceOp op :
         {ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Min, ReduceOp::Max, ReduceOp::Prod}) {
      const auto dtype = static_cast<DType>(d);
      if (op == ReduceOp::Mean && !is_floating(dtype)) continue;
      if (op == ReduceOp::Sum && dtype == DType::Bool) continue;
      for (Algorithm algorithm : {Algorithm::Flat, Algorithm::Ring})
        for (std::size_t count :
             {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{5000}})
          visit_dtype(dtype, [&]<class T>() {
            SCOPED_TRACE(concat(name_of(dtype), " ", name_of(op), " ", count));
            check_all_reduce<T>(op, count, algorithm, count == 5000);
          });
    }
  }
}

TEST_F(Mpi, AllReducesInSeveralChunks) {
  for (Algorithm algorithm : {Algorithm::Flat, Algorithm::Ring})
    for (bool in_place : {false, true})
      for (std::size_t count : {std::size_t{1} << 20, (std::size_t{5} << 18) + 3}) {
        check_all_reduce<float>(ReduceOp::Sum, count, algorithm, in_place);
        check_all_reduce<BFloat16>(ReduceOp::Mean, count, algorithm, in_place);
        check_all_reduce<std::int64_t>(ReduceOp::Sum, count, algorithm, in_place);
      }
}

TEST_F(Mpi, PropagatesNan) {
  for (Algorithm algorithm : {Algorithm::Flat, Algorithm::Ring})
    for (std::size_t count : {std::size_t{3}, std::size_t{4000}})
      for (ReduceOp op : {ReduceOp::Min, ReduceOp::Max}) {
        std::vector<float> data(count, static_cast<float>(rank()));
        if (rank() == size() - 1) data[1] = std::numeric_limits<float>::quiet_NaN();
        Collective c = all_reduce(data);
        c.op = op;
        c.algorithm = algorithm;
        run(c);
        EXPECT_TRUE(std::isnan(data[1]));
        EXPECT_EQ(data[0], op == ReduceOp::Min ? 0.0f : static_cast<float>(size() - 1));
      }
}

TEST_F(Mpi, BroadcastsFromEveryRoot) {
  for (std::size_t count : {std::size_t{0}, std::size_t{3}, std::size_t{5000}, std::size_t{700000}})
    for (int root = 0; root < size(); ++root) {
      std::vector<std::int64_t> source(count), destination(count);
      for (std::size_t i = 0; i < count; ++i) source[i] = contribution<std::int64_t>(rank(), i);
      Collective c;
      c.kind = Kind::Broadcast;
      c.dtype = DType::I64;
      c.count = count;
      c.root = root;
      c.source = source.data();
      c.destination = rank() == 0 ? source.data() : destination.data();
      run(c);
      const auto* got = static_cast<const std::int64_t*>(c.destination);
      for (std::size_t i = 0; i < count; ++i)
        ASSERT_EQ(got[i], contribution<std::int64_t>(root, i)) << "root " << root;
    }
}

TEST_F(Mpi, KeepsManyWorksInFlight) {
  std::vector<std::vector<float>> data;
  for (std::size_t i = 0; i < 40; ++i)
    data.emplace_back(i % 3 == 0 ? 100000 + i : 10 + i,
                      static_cast<float>(rank()) + static_cast<float>(i));
  std::vector<Work> works;
  for (std::vector<float>& each : data) works.push_back(comm_->submit(all_reduce(each)));
  while (!comm_->done(works[5])) std::this_thread::yield();
  comm_->wait(works[20], kTimeout);  // in any order
  for (std::size_t i = works.size(); i-- > 0;) comm_->wait(works[i], kTimeout);
  const auto n = static_cast<float>(size());
  for (std::size_t i = 0; i < data.size(); ++i)
    for (float value : data[i]) ASSERT_EQ(value, n * static_cast<float>(i) + n * (n - 1) / 2);
}

TEST_F(Mpi, RejectsBadArgumentsAndStaysOpen) {
  std::vector<float> data(4, 1.0f);
  Collective c = all_reduce(data);
  c.op = ReduceOp::None;
  EXPECT_THROW(comm_->submit(c), Error);
  c.kind = Kind::Send;
  c.root = rank();
  EXPECT_THROW(comm_->submit(c), Error);
  barrier();
}

TEST_F(Mpi, AllocatesAlignedMemory) {
  const SharedBlock block = comm_->allocate(1000);
  EXPECT_EQ(std::bit_cast<std::uintptr_t>(block.data) % 64, 0u);
  std::memset(block.data, 1, block.bytes);
  comm_->release(block);
}

TEST_F(Mpi, AMismatchNamesBothSides) {
  if (size() == 1) GTEST_SKIP() << "needs two ranks";
  const bool odd = rank() == size() - 1;
  const std::vector<std::function<void(Collective&)>> differences{
      [](Collective& c) { c.count -= 1; },
      [](Collective& c) { c.dtype = DType::I32; },
      [](Collective& c) { c.op = ReduceOp::Max; },
      [](Collective& c) { c.algorithm = Algorithm::Ring; },
      [](Collective& c) {
        c.kind = Kind::Broadcast;
        c.op = ReduceOp::None;
      },
      [](Collective& c) { c.kind = Kind::Barrier; },
  };
  for (const auto& change : differences)
    for (std::size_t count : {std::size_t{8}, std::size_t{100000}}) {
      std::vector<float> data(count, 1.0f);
      Collective c = all_reduce(data, odd ? "odd.py:2" : "even.py:1");
      if (odd) change(c);
      expect_error(ErrorKind::CollectiveMismatch, c,
                   {"even.py:1", "odd.py:2", concat("rank ", size() - 1)});
      comm_->close();
      comm_ = make_mpi_communicator(-1, kTimeout);
    }
}

TEST_F(Mpi, AMismatchOfProgramsShowsTheLine) {
  if (size() == 1) GTEST_SKIP() << "needs two ranks";
  const bool odd = rank() == 0;
  std::vector<float> data(8, 1.0f);
  ProgramIdentity program{odd ? 7u : 8u, odd ? "same\nmean x\n" : "same\nsum y\nmore\n"};
  Collective c = all_reduce(data);
  c.program = &program;
  expect_error(ErrorKind::CollectiveMismatch, c, {"collective 2:", "mean x", "sum y"});
}

TEST_F(Mpi, AMissingRankIsNamed) {
  if (size() == 1) GTEST_SKIP() << "needs two ranks";
  std::vector<float> data(100000, 1.0f);
  const Collective c = all_reduce(data, "step.py:9");
  const std::string missing = concat("rank ", size() - 1);
  const std::vector<std::string> words{missing, "all_reduce(sum)", "step.py:9", "0.5 s"};
  const Tally gave_up;
  barrier();
  // Late enough that the other ranks have given up. Otherwise MPI keeps a message, and the process
  // can only exit.
  if (rank() == size() - 1) {
    ASSERT_TRUE(gave_up.await(size() - 1));
  }
  expect_error(ErrorKind::CollectiveTimeout, c, words, 0.5);
  if (rank() < size() - 1) gave_up.report(rank());
}

TEST_F(Mpi, AnExceptionReachesThePeers) {
  if (size() == 1) GTEST_SKIP() << "needs two ranks";
  std::vector<float> data(100000, 1.0f);
  const Collective c = all_reduce(data, "step.py:9");
  if (rank() == 0) {
    comm_->abort("Traceback: " + std::string(100000, '.') + " ValueError: broken");
    EXPECT_THROW(comm_->submit(c), Error);
  } else {
    expect_error(ErrorKind::RemoteRank, c, {"rank 0", "ValueError: broken"});
  }
}

TEST_F(Mpi, ALeavingRankIsDetected) {
  if (size() == 1) GTEST_SKIP() << "needs two ranks";
  std::vector<float> data(10, 1.0f);
  if (rank() == 0) {
    comm_->close();
    comm_->close();
    EXPECT_THROW(comm_->submit(all_reduce(data)), Error);
  } else {
    expect_error(ErrorKind::RankLost, all_reduce(data), {"rank 0", "left"});
  }
}

TEST_F(Mpi, CanBeInterrupted) {
  if (size() == 1) GTEST_SKIP() << "needs two ranks";
  const std::vector<Tally> interrupted(
      static_cast<std::size_t>(size()));  // one for each rank that waits
  if (rank() == 0) {
    comm_->set_interrupt([] { return true; });
    expect_error(ErrorKind::Interrupted, Collective{}, {"barrier"});
    for (int r = 1; r < size(); ++r) interrupted[static_cast<std::size_t>(r)].report(0);
  } else {
    ASSERT_TRUE(interrupted[static_cast<std::size_t>(rank())].await(1));
    barrier();  // rank 0 had entered this barrier
    expect_error(ErrorKind::RemoteRank, Collective{}, {"rank 0", "interrupted in barrier"});
  }
}

TEST_F(Mpi, AForkedChildIsRejected) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (!comm_->stats().empty()) ::_exit(3);
    try {
      comm_->submit(Collective{});
    } catch (const Error& error) {
      ::_exit(error.kind() == ErrorKind::GroupClosed ? 0 : 1);
    }
    ::_exit(2);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  barrier();
}

// As when the interpreter of the child exits: it calls nothing in MPI, and waits for nothing.
TEST_F(Mpi, AForkedChildMayExit) {
  std::vector<float> data(1 << 20, 1.0f);
  const Work work = comm_->submit(all_reduce(data));
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    comm_->close();
    comm_.reset();
    finalize_mpi();
    ::_exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  comm_->wait(work, kTimeout);
  EXPECT_EQ(data.front(), static_cast<float>(size()));
}

// More messages than one call of MPI_Testsome tests.
TEST_F(Mpi, ManyMessagesAreTestedTogether) {
  constexpr int kMessages = 700;
  const mpi::Endpoint endpoint = mpi::open_endpoint(-1, kTimeout);
  mpi::RankSet channel{endpoint.comm, {}, endpoint.rank, 0};
  for (int r = 0; r < endpoint.size; ++r) channel.members.push_back(r);
  const int to = (rank() + 1) % size(), from = (rank() + size() - 1) % size();
  std::vector<int> sent(kMessages), received(kMessages, -1);
  {
    mpi::Requests requests(channel);
    for (int i = 0; i < kMessages; ++i)
      requests.receive(&received[static_cast<std::size_t>(i)], sizeof(int), from, i % 7);
    for (int i = 0; i < kMessages; ++i) {
      sent[static_cast<std::size_t>(i)] = 1000 * rank() + i;
      requests.send(&sent[static_cast<std::size_t>(i)], sizeof(int), to, i % 7);
    }
    while (!requests.test()) std::this_thread::yield();
  }
  for (int i = 0; i < kMessages; ++i)
    EXPECT_EQ(received[static_cast<std::size_t>(i)], 1000 * from + i);
  barrier();
  mpi::library().free(endpoint.comm);
}

// Rank 0 closes groups before the other ranks. MPI cancels its receives, so their buffers are
// freed: 64 KiB per peer and group.
TEST_F(Mpi, AClosedGroupFreesItsMemory) {
  if (size() == 1) GTEST_SKIP() << "needs two ranks";
  constexpr int kGroups = 20;
  const auto used = [] {
    const struct mallinfo2 info = ::mallinfo2();
    return info.uordblks + info.hblkhd;
  };
  std::vector<std::unique_ptr<Communicator>> groups;
  groups.push_back(comm_->split(0, rank()));
  groups.clear();
  barrier();
  const std::size_t before = used();
  for (int i = 0; i < kGroups; ++i) groups.push_back(comm_->split(0, rank()));
  if (rank() == 0) groups.clear();
  barrier();
  if (rank() == 0) {
    EXPECT_LT(used(), before + kGroups * (std::size_t{32} << 10));
  }
  groups.clear();
}

TEST_F(Mpi, ClosesAndOpensAgain) {
  for (int i = 0; i < 20; ++i) {
    comm_->close();
    comm_ = make_mpi_communicator(-1, kTimeout);
    barrier();
  }
}

}  // namespace
}  // namespace ngd::comm

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const int failed = RUN_ALL_TESTS();
  ngd::comm::finalize_mpi();
  return failed;
}
