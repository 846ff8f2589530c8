// SPDX-License-Identifier: Apache-2.0
#include "comm/retry.hpp"

#include <algorithm>
#include <thread>

namespace ngd::comm {

namespace {
// The shortest and the longest time between two tries of a call, while another thread uses the
// group. The shortest is about the time of a small collective. The longest is too short for a user
// to notice.
constexpr std::chrono::microseconds kShortestNap{50}, kLongestNap{1000};
constexpr int kDoublings = 5;
constexpr std::chrono::milliseconds kCheckInterval{50};  // between two checks for interrupts
}  // namespace

void Retries::wait() {
  std::this_thread::sleep_for(std::min(kShortestNap * (1 << naps_), kLongestNap));
  naps_ = std::min(naps_ + 1, kDoublings);
  const Clock::time_point now = Clock::now();
  if (begin_ == Clock::time_point{}) begin_ = last_check_ = now;
  if (timeout_seconds_ > 0 &&
      std::chrono::duration<double>(now - begin_).count() >= timeout_seconds_)
    give_up(ErrorKind::CollectiveTimeout,
            concat("another thread of this process has used the group for ", timeout_seconds_,
                   " s, so this thread could not continue its pending collective"));
  if (now - last_check_ < kCheckInterval) return;
  last_check_ = now;
  if (group_.is_interrupted())
    give_up(ErrorKind::Interrupted,
            "interrupted while another thread of this process used the group");
}

void Retries::give_up(ErrorKind kind, const std::string& why) {
  group_.abort(why);
  fail(kind, why);
}

}  // namespace ngd::comm
