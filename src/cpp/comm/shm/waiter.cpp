// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/waiter.hpp"

#include <algorithm>
#include <new>

#include "base/error.hpp"
#include "comm/messages.hpp"

namespace ngd::comm::shm {

namespace {

constexpr std::uint64_t kSleepNs = 50'000'000;  // the longest time between two checks of the peers
// After a wait of this time, this rank writes its call where the peers can read it (note_wait).
constexpr std::uint64_t kLongNs = 100'000'000;

// Return a time in nanoseconds; negative times count as 0, and times above 1e9 s as 1e9 s.
std::uint64_t ns_of(double seconds) {
  return static_cast<std::uint64_t>(std::clamp(seconds, 0.0, 1e9) * 1e9);
}

}  // namespace

Waiter::Deadline Waiter::deadline_of(const WaitLimits& limits) {
  if (limits.has_patience())
    return {limits.patience_seconds, false, now_ns() + ns_of(limits.patience_seconds)};
  Deadline deadline{limits.timeout_seconds};
  if (limits.timeout_seconds > 0 && limits.waited_seconds > 0)
    deadline.at_ns = now_ns() + ns_of(limits.timeout_seconds - limits.waited_seconds);
  return deadline;
}

bool Waiter::wait(Work work, const WaitLimits& limits) {
  works_.check_known(work);
  family_.progress();
  if (works_.is_complete(work)) return true;
  Deadline deadline = deadline_of(limits);
  struct Unpublish {
    const Deadline& deadline;
    RankRecord& record;
    ~Unpublish() {
      if (deadline.is_published) note_wait(record, "");
    }
  } unpublish{deadline, family_.record()};
  const std::uint64_t start = now_ns();
  const Statistics::Entry entry = works_.stats_of(work);
  const bool is_complete = block(work, deadline);
  statistics_.add_waited(entry, (is_complete ? works_.end_of(work) : now_ns()) - start);
  return is_complete;
}

bool Waiter::poll(Work work) {
  works_.check_known(work);
  family_.progress();
  if (works_.is_complete(work)) return true;
  look_at_peers(work);
  return works_.is_complete(work);
}

bool Waiter::block(Work work, Deadline& deadline) {
  Ladder& ladder = family_.ladder();
  Monitor& monitor = family_.monitor();
  const std::uint64_t& moves = family_.moves();
  ladder.restart();
  for (;;) {
    const std::uint64_t moves_before = moves;
    family_.progress();
    if (works_.is_complete(work)) return true;
    if (!deadline.is_error && now_ns() >= deadline.at_ns) {
      // A short wait may have ended before its first sleep, so inspect() has not checked the peers.
      if (family_.checked()) look_at_peers(work);
      return works_.is_complete(work);
    }
    if (monitor.wanted()) [[unlikely]] {
      monitor.give_way();
      check_still_open(work);
    }
    if (moves_before != moves) {
      ladder.restart();
    } else if (!ladder.spin_or_yield()) {
      inspect(work, deadline);
      sleep(work, deadline);
      ladder.restart();
    }
  }
}

void Waiter::sleep(Work work, const Deadline& deadline) {
  const std::uint64_t now = now_ns();
  const bool is_bounded = deadline.seconds > 0 && deadline.at_ns > now;
  const std::uint64_t ns_left = is_bounded ? deadline.at_ns - now : kSleepNs;
  sleep_unless(family_.record(), family_.ladder(), bell_of(work), std::min(ns_left, kSleepNs), [&] {
    const std::uint64_t last = family_.moves();
    family_.progress();
    return works_.is_complete(work) || last != family_.moves() ||
           family_.monitor().wanted_before_sleep();
  });
}

// Return the value of RankRecord::sleeping for this wait: it decides which peers wake this rank. If
// this work is the only pending one, and only one rank can move it on (Works::only_awaited_rank),
// return until_rank() of that rank. Otherwise return kUntilAny.
std::uint32_t Waiter::bell_of(Work work) const noexcept {
  const int rank = family_.in_flight() == 1 ? works_.only_awaited_rank(work) : -1;
  return rank >= 0 ? until_rank(rank) : kUntilAny;
}

// ---- a slow wait: can it still end?

void Waiter::inspect(Work work, Deadline& deadline) {
  const std::uint64_t now = now_ns();
  if (deadline.at_ns == 0) deadline.at_ns = now + ns_of(deadline.seconds);
  publish_wait(work, deadline, now);
  if (family_.checked()) {
    for (const Member* member : family_.members()) member->check();
    look_at_peers(work);
    look_at_other_groups();
  }
  if (family_.time_to_ask(now)) ask_caller(work);
  if (deadline.is_error && deadline.seconds > 0 && now >= deadline.at_ns)
    throw_if_late(works_.need_of(work), deadline.seconds);
}

// Publish the call in which this rank waits, if it has waited for long. The error messages of ranks
// that wait for this rank then name the call.
void Waiter::publish_wait(Work work, Deadline& deadline, std::uint64_t now) {
  if (deadline.slow_since_ns == 0) deadline.slow_since_ns = now;
  if (deadline.is_published || now - deadline.slow_since_ns <= kLongNs) return;
  deadline.is_published = true;
  try {
    note_wait(family_.record(), works_.describe_need(works_.need_of(work)));
  } catch (const std::bad_alloc&) {  // no memory: the error messages of peers do not name this call
  }
}

void Waiter::ask_caller(Work work) {
  bool is_over = false;
  {
    const Outside outside(family_.monitor());
    is_over = is_interrupted_();
  }
  check_still_open(work);
  if (is_over)
    fail(ErrorKind::Interrupted, "interrupted in ", works_.describe_need(works_.need_of(work)));
}

// Throw if another thread, or the caller's callback, has closed the group.
void Waiter::check_still_open(Work work) const {
  if (family_.failed()) family_.refuse(works_.describe(work), group_.is_closed());
  if (group_.is_closed() || family_.closed())
    fail(ErrorKind::GroupClosed, closed_while_waiting(works_.name_of(work)));
}

void Waiter::look_at_peers(Work work) {
  member_.check_peers();
  const bool may_watch = family_.time_to_watch(now_ns());
  const Need need = works_.need_of(work);
  for (int r = need.first; r < need.last; ++r) {
    if (group_.has(need, r)) continue;
    const int rank = group_.job_rank(r);
    const bool has_left = group_.control(r).left.load() != 0;
    if (!has_left && (!may_watch || family_.liveness().alive(group_.world(r)))) continue;
    const std::uint64_t moves = family_.moves();
    family_.progress();
    // If the rank raised a flag before it ended, this wait may be over: no error yet.
    if (moves != family_.moves() || group_.has(need, r)) return;
    member_.check_peers();  // the rank may have reported a failure before it ended
    const std::string call = works_.describe_need(need);
    if (has_left) fail_of({rank}, ErrorKind::RankLost, rank_left(call, rank, group_.id() == 0));
    fail_of({rank}, ErrorKind::RankLost, rank_died(call, rank, group_.record(r).pid));
  }
}

// If this rank runs a compiled step that uses this group and other groups, throw the failure that
// a rank of these groups has reported. Otherwise do nothing.
void Waiter::look_at_other_groups() const {
  if (!member_.is_watched()) return;
  for (const Member* other : family_.members())
    if (other->is_watched()) other->check_peers();
}

// ---- the deadline has passed

void Waiter::throw_if_late(const Need& need, double seconds) const {
  const std::vector<int> missing = group_.missing(need);
  if (missing.empty()) return;
  const bool has_arrived = need.flag != Need::Flag::Published && need.flag != Need::Flag::Letter;
  std::vector<std::string> facts;
  bool is_in_other_call = false;
  int pid = 0;
  for (int r = need.first; r < need.last; ++r) {
    if (group_.has(need, r)) continue;
    pid = group_.record(r).pid;
    const std::string wait = has_arrived ? "" : noted_wait(group_.record(r));
    is_in_other_call |= !wait.empty();
    facts.push_back(concat("rank ", group_.job_rank(r), " (process ", pid, ") ",
                           has_arrived    ? "takes part in the call"
                           : wait.empty() ? last_call_of(r)
                                          : "waits in " + wait,
                           "."));
  }
  fail_of(missing, ErrorKind::CollectiveTimeout,
          late(works_.describe_need(need), missing, has_arrived, seconds, facts,
               late_advice(is_in_other_call, missing.size() == 1 ? pid : 0)));
}

// Return a text about the last call of a rank that is in no collective of this group. ngd.init()
// itself calls a collective. If the rank has called no other one, the text says that it has called
// none since ngd.init().
std::string Waiter::last_call_of(int rank) const {
  const std::uint64_t last = group_.control(rank).sequence.load();
  if (last == 0 || group_.segment(rank).slot(last).published.load() != last)
    return "is not in a collective. It has called none of this group";
  const CallRecord& call = group_.call(last, rank);
  if (std::string_view(call.site) == "ngd.init()")
    return "is not in a collective. It has called none since ngd.init()";
  return concat("is not in a collective. Its last call in this group was ", describe(call));
}

}  // namespace ngd::comm::shm
