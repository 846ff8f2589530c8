// SPDX-License-Identifier: Apache-2.0
// The exceptions of the C++ core. Cython translates each ErrorKind into the Python exception that
// the comment beside the kind names, and Internal into RuntimeError.
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
  Init,                // ngd.errors.InitError: a group cannot be created
  CollectiveMismatch,  // ngd.errors.CollectiveMismatchError
  CollectiveTimeout,   // ngd.errors.CollectiveTimeoutError
  RankLost,            // ngd.errors.RankLostError
  RemoteRank,          // ngd.errors.RemoteRankError: another rank has raised an error
  GroupClosed,  // ngd.errors.GroupClosedError: an earlier failure or shutdown ended the group
  Busy,         // ngd.errors.BusyError: another thread uses the same group or step
  Interrupted,  // KeyboardInterrupt
  NotFinite,    // ngd.errors.NotFiniteError: the first NaN or infinity in the values of a step
  DType,        // ngd.errors.DTypeError: a dtype that an operation does not accept
};

// Return true for a failure between ranks: ranks that disagree, are late, or are lost. Every rank
// of the group then raises an error of the same kind. An error of any other kind belongs to one
// rank: only the rank that failed raises it, and the other ranks raise RemoteRank.
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
  // The world ranks that the error is about, in rising order: ranks that are lost, late or failed,
  // or ranks that disagree.
  const std::vector<int>& ranks() const noexcept { return ranks_; }

 private:
  ErrorKind kind_;
  std::vector<int> ranks_;
};

// Return the text that operator<< prints for the arguments, one after the other, in the "C" locale.
template <class... Parts>
std::string concat(Parts&&... parts) {
  std::ostringstream out;
  out.exceptions(std::ios::badbit);  // otherwise, a message is truncated if memory runs out
  out.imbue(std::locale::classic());
  (out << ... << std::forward<Parts>(parts));
  return out.str();
}

// Throw an error of `kind` that is not about certain ranks. The other arguments are joined to the
// message.
template <class... Parts>
[[noreturn]] void fail(ErrorKind kind, Parts&&... parts) {
  throw Error(kind, concat(std::forward<Parts>(parts)...));
}

// Throw an error of `kind` that is about `ranks`. The other arguments are joined to the message.
template <class... Parts>
[[noreturn]] void fail_of(std::vector<int> ranks, ErrorKind kind, Parts&&... parts) {
  throw Error(kind, concat(std::forward<Parts>(parts)...), std::move(ranks));
}

// The kind, text and ranks of an exception, which are sent to other ranks. The exception owns the
// text and the ranks, so this view must not outlive it.
struct FailureView {
  ErrorKind kind = ErrorKind::Internal;
  std::string_view text;
  std::span<const int> ranks;
};

// Return the kind, text and ranks of the exception that is being handled. Call this only in a catch
// block. It allocates no memory.
FailureView failure_in_flight() noexcept;

// Return call(). If it throws, call notify(FailureView), and rethrow the exception.
template <class Call, class Notify>
decltype(auto) notify_on_failure(Call&& call, Notify&& notify) {
  try {
    return std::forward<Call>(call)();
  } catch (const std::exception&) {
    notify(failure_in_flight());
    throw;
  }
}

// Throw Internal if the condition is false: then an invariant of ngd itself is broken. The
// arguments after the condition are joined to the message.
template <class... Parts>
void check(bool condition, Parts&&... parts) {
  if (!condition) [[unlikely]]
    fail(ErrorKind::Internal, std::forward<Parts>(parts)...);
}

}  // namespace ngd
