// SPDX-License-Identifier: Apache-2.0
// What the core throws. Cython turns each kind into the class of the same name in ngd.errors.
#pragma once

#include <algorithm>
#include <exception>
#include <locale>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ngd {

enum class ErrorKind {
  Internal,            // a broken invariant of ngd itself
  InvalidArgument,     // ValueError
  Unsupported,         // NotImplementedError
  OutOfMemory,         // MemoryError
  Init,                // ngd.errors.InitError: a group cannot be made
  CollectiveMismatch,  // ngd.errors.CollectiveMismatchError
  CollectiveTimeout,   // ngd.errors.CollectiveTimeoutError
  RankLost,            // ngd.errors.RankLostError
  RemoteRank,          // ngd.errors.RemoteRankError
  GroupClosed,  // ngd.errors.GroupClosedError: an earlier failure or shutdown ended the group
  Busy,         // ngd.errors.BusyError: another thread is in the same call
  Interrupted,  // KeyboardInterrupt
  NotFinite,    // ngd.errors.NotFiniteError: a NaN, or an infinity, where one begins
  DType,        // ngd.errors.DTypeError: a dtype that an operation does not accept
};

// Whether a failure is the group's, which every rank raises alike; any other is one rank's own, and
// RemoteRank to the rest.
constexpr bool is_between_ranks(ErrorKind kind) noexcept {
  return kind == ErrorKind::CollectiveMismatch || kind == ErrorKind::CollectiveTimeout ||
         kind == ErrorKind::RankLost;
}

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message, std::vector<int> ranks = {})
      : std::runtime_error(message), kind_(kind), ranks_(std::move(ranks)) {
    std::sort(ranks_.begin(), ranks_.end());
  }
  ErrorKind kind() const noexcept { return kind_; }
  // Those of the world that it speaks of, in rising order: who is lost, late or has failed; who
  // disagree.
  const std::vector<int>& ranks() const noexcept { return ranks_; }

 private:
  ErrorKind kind_;
  std::vector<int> ranks_;
};

template <class... Parts>
std::string concat(Parts&&... parts) {
  std::ostringstream out;
  out.exceptions(std::ios::badbit);  // else a message is cut where there is no memory for it
  out.imbue(std::locale::classic());
  (out << ... << std::forward<Parts>(parts));
  return out.str();
}

template <class... Parts>
[[noreturn]] void fail(ErrorKind kind, Parts&&... parts) {
  throw Error(kind, concat(std::forward<Parts>(parts)...));
}

// An error that speaks of ranks.
template <class... Parts>
[[noreturn]] void fail_of(std::vector<int> ranks, ErrorKind kind, Parts&&... parts) {
  throw Error(kind, concat(std::forward<Parts>(parts)...), std::move(ranks));
}

// The facts of an exception, for other ranks. Text and ranks belong to the exception.
struct FailureView {
  ErrorKind kind = ErrorKind::Internal;
  std::string_view text;
  std::span<const int> ranks;
};

// Return the facts of the exception that a handler handles now. Allocates no memory.
FailureView failure_in_flight() noexcept;

// Return call(). If it throws, call notify(FailureView) first; the exception then goes on to the
// caller.
template <class Call, class Notify>
decltype(auto) notify_on_failure(Call&& call, Notify&& notify) {
  try {
    return std::forward<Call>(call)();
  } catch (const std::exception&) {
    notify(failure_in_flight());
    throw;
  }
}

// check(condition, "what was expected, and what came ", value): a broken invariant of ngd itself.
template <class... Parts>
void check(bool condition, Parts&&... parts) {
  if (!condition) [[unlikely]]
    fail(ErrorKind::Internal, std::forward<Parts>(parts)...);
}

}  // namespace ngd
