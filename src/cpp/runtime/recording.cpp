// SPDX-License-Identifier: Apache-2.0
#include "runtime/recording.hpp"

#include <algorithm>
#include <chrono>
#include <exception>

#include "base/error.hpp"

namespace ngd::runtime {

std::int64_t now_ns() noexcept {
  using std::chrono::duration_cast, std::chrono::nanoseconds, std::chrono::steady_clock;
  return duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count();
}

void Recording::begin(std::size_t max_events) {
  const std::scoped_lock lock(mutex_);
  if (current() != 0)
    fail(ErrorKind::Busy,
         "ngd.profile, ngd.timeline: expected one block at a time; got a second one");
  events_.clear();
  labels_.clear();
  dropped_ = 0;
  max_events_ = max_events;
  wants_events_.store(max_events > 0, std::memory_order_relaxed);
  on_.store(++last_, std::memory_order_relaxed);
}

void Recording::end() noexcept {
  const std::scoped_lock lock(mutex_);
  on_.store(0, std::memory_order_relaxed);
  wants_events_.store(false, std::memory_order_relaxed);
}

void Recording::add(std::uint64_t number, const Program& program,
                    const std::vector<Event>& events) noexcept {
  const std::scoped_lock lock(mutex_);
  const std::size_t num_before = events_.size();
  try {
    if (labels_.count(number) == 0) {
      std::vector<Label> labels;
      for (const Instruction& each : program.instructions)
        labels.push_back({each.action, each.op, each.site, each.start});
      labels_.emplace(number, std::move(labels));
    }
    const std::size_t num_added =
        std::min(events.size(), max_events_ - std::min(num_before, max_events_));
    events_.insert(events_.end(), events.begin(),
                   events.begin() + static_cast<std::ptrdiff_t>(num_added));
  } catch (const std::exception&) {  // out of memory: the events are dropped
  }
  dropped_ += events.size() - (events_.size() - num_before);
}

std::vector<Event> Recording::events() const {
  const std::scoped_lock lock(mutex_);
  return {events_.begin(), events_.end()};
}

std::unordered_map<std::uint64_t, std::vector<Label>> Recording::labels() const {
  const std::scoped_lock lock(mutex_);
  return labels_;
}

std::uint64_t Recording::dropped() const noexcept {
  const std::scoped_lock lock(mutex_);
  return dropped_;
}

namespace {
// Constructed when the library is loaded, and never destroyed, because threads may run until the
// process ends.
Recording& the_recording = *new Recording;
}  // namespace

Recording& recording() noexcept { return the_recording; }

}  // namespace ngd::runtime
