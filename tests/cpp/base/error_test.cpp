// SPDX-License-Identifier: Apache-2.0
#include "base/error.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

namespace {
bool has_memory = true;
}  // namespace

[[gnu::noinline]] void* operator new(std::size_t bytes) {
  if (!has_memory) throw std::bad_alloc();
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace ngd {
namespace {

struct Kept {
  ErrorKind kind;
  std::string text;
  std::vector<int> ranks;
};

// Return the facts that notify_on_failure() reports about the exception of `call`.
template <class Call>
Kept facts_of(Call&& call) {
  Kept kept{};
  try {
    notify_on_failure(call, [&](const FailureView& failure) {
      kept = {failure.kind, std::string(failure.text),
              std::vector<int>(failure.ranks.begin(), failure.ranks.end())};
    });
  } catch (const std::exception&) {
    return kept;
  }
  ADD_FAILURE() << "expected the exception to continue";
  return kept;
}

TEST(NotifyOnFailure, GivesTheFactsOfEachException) {
  const Kept own = facts_of([] { fail_of({3, 1}, ErrorKind::RankLost, "lost ", 2); });
  EXPECT_EQ(own.kind, ErrorKind::RankLost);
  EXPECT_EQ(own.text, "lost 2");
  EXPECT_EQ(own.ranks, (std::vector{1, 3}));
  const Kept memory = facts_of([] { throw std::bad_alloc(); });
  EXPECT_EQ(memory.kind, ErrorKind::OutOfMemory);
  EXPECT_EQ(memory.text, "out of memory");
  const Kept other = facts_of([] { throw std::out_of_range("index 7"); });
  EXPECT_EQ(other.kind, ErrorKind::Internal);
  EXPECT_EQ(other.text, "index 7");
}

TEST(NotifyOnFailure, ReturnsTheResultOfACall) {
  int value = 4;
  int& result = notify_on_failure([&]() -> int& { return value; }, [](const FailureView&) {});
  EXPECT_EQ(&result, &value);
}

TEST(NotifyOnFailure, AllocatesNoMemory) {
  ErrorKind kind{};
  try {
    has_memory = false;
    notify_on_failure([&] { throw std::bad_alloc(); },
                      [&](const FailureView& failure) { kind = failure.kind; });
  } catch (const std::bad_alloc&) {
  }
  has_memory = true;
  EXPECT_EQ(kind, ErrorKind::OutOfMemory);
}

}  // namespace
}  // namespace ngd
