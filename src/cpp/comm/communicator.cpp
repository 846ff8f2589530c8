// SPDX-License-Identifier: Apache-2.0
#include "comm/communicator.hpp"

#include <algorithm>
#include <thread>

namespace ngd::comm {

std::uint64_t Communicator::make_common(std::size_t) {
  fail(ErrorKind::Unsupported, "the ranks of this group map no memory of each other's");
}

std::shared_ptr<void> Communicator::open_common(int, std::uint64_t) {
  fail(ErrorKind::Unsupported, "the ranks of this group map no memory of each other's");
}

std::unique_ptr<CopyOnWriteMapping> Communicator::map_common(int, std::uint64_t, std::size_t) {
  fail(ErrorKind::Unsupported, "the ranks of this group map no memory of each other's");
}

namespace {
// Between two tries. The first is about what a small collective takes, the longest what the eye
// does not see.
constexpr std::chrono::microseconds kShortestNap{50}, kLongestNap{1000};
constexpr int kDoublings = 5;
constexpr std::chrono::milliseconds kAsk{50};  // between two questions to the caller
}  // namespace

void Communicator::Turn::wait() {
  std::this_thread::sleep_for(std::min(kShortestNap * (1 << naps_), kLongestNap));
  naps_ = std::min(naps_ + 1, kDoublings);
  const Clock::time_point now = Clock::now();
  if (begin_ == Clock::time_point{}) begin_ = asked_ = now;
  if (timeout_seconds_ > 0 &&
      std::chrono::duration<double>(now - begin_).count() >= timeout_seconds_)
    give_up(ErrorKind::CollectiveTimeout,
            concat("another thread of this process has used the group for ", timeout_seconds_,
                   " s; this one has a collective under way and could not go on with it"));
  if (now - asked_ < kAsk) return;
  asked_ = now;
  if (group_.interrupted())
    give_up(ErrorKind::Interrupted,
            "interrupted while another thread of this process used the group");
}

void Communicator::Turn::give_up(ErrorKind kind, const std::string& why) {
  group_.abort(why);
  fail(kind, why);
}

}  // namespace ngd::comm
