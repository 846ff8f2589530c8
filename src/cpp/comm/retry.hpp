// SPDX-License-Identifier: Apache-2.0
// Repeated tries of a call of a group, such as try_wait(), which returns Busy if another thread
// uses the group. A larger operation that has begun, such as the run of a step, cannot return Busy.
// So it repeats the call until the group is free.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "comm/communicator.hpp"

namespace ngd::comm {

// The waits between the tries of a call that returned Busy or nullopt, because another thread uses
// the group. The timeout is for all tries of the call together.
class Retries {
 public:
  Retries(Communicator& group, double timeout_seconds) noexcept
      : group_(group), timeout_seconds_(timeout_seconds) {}
  // Sleep until the next try. Throws if the timeout has passed, or the caller is interrupted.
  void wait();

 private:
  using Clock = std::chrono::steady_clock;
  // Close the group as abort() does, and throw an error of `kind` with the text `why`.
  [[noreturn]] void give_up(ErrorKind kind, const std::string& why);

  Communicator& group_;
  double timeout_seconds_;
  int naps_ = 0;
  Clock::time_point begin_{}, last_check_{};
};

// Return true if a call was refused because another thread uses the group.
inline bool is_busy(Progress progress) noexcept { return progress == Progress::Busy; }
template <class Value>
bool is_busy(const std::optional<Value>& result) noexcept {
  return !result.has_value();
}

// Repeat call() while it returns Busy or nullopt, and return its last result. If that takes longer
// than timeout_seconds (0 = no limit), or the interrupt callback returns true, close the group as
// abort() does, and throw CollectiveTimeout or Interrupted.
template <class Call>
auto retry_while_busy(Communicator& group, double timeout_seconds, Call&& call) {
  auto result = call();
  if (!is_busy(result)) [[likely]]
    return result;
  Retries retries(group, timeout_seconds);
  do {
    retries.wait();
    result = call();
  } while (is_busy(result));
  return result;
}

// Call try_submit(), try_wait() or try_split() of the group, and retry while another thread uses
// the group. The errors and the timeout are those of retry_while_busy(). In wait_retrying(), each
// try_wait() also has this timeout.
inline Work submit_retrying(Communicator& group, const Collective& collective,
                            double timeout_seconds) {
  return *retry_while_busy(group, timeout_seconds, [&] { return group.try_submit(collective); });
}
inline void wait_retrying(Communicator& group, Work work, double timeout_seconds) {
  static_cast<void>(retry_while_busy(group, timeout_seconds,
                                     [&] { return group.try_wait(work, {timeout_seconds}); }));
}
inline std::unique_ptr<Communicator> split_retrying(Communicator& group, int color, int key,
                                                    double timeout_seconds) {
  return std::move(
      *retry_while_busy(group, timeout_seconds, [&] { return group.try_split(color, key); }));
}

}  // namespace ngd::comm
