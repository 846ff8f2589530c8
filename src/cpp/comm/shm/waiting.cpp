// SPDX-License-Identifier: Apache-2.0
// The communicator's waiting: until what, how long, and whether there is still anything to wait
// for.
#include <algorithm>

#include "base/error.hpp"
#include "comm/messages.hpp"
#include "comm/shm/guarded.hpp"
#include "comm/shm/shm_communicator.hpp"

namespace ngd::comm::shm {

namespace {

constexpr std::uint64_t kSleepNs = 50'000'000;  // between two looks at the peers

std::uint64_t ns_of(double seconds) {
  return static_cast<std::uint64_t>(std::clamp(seconds, 0.0, 1e9) * 1e9);
}

}  // namespace

void ShmCommunicator::check_known(Work work) const {
  const bool known = (work.sequence & kBetweenTwo) != 0
                         ? streams_.known(work)
                         : work.sequence >= 1 && work.sequence <= submitted_;
  check(known, "a work that was never submitted: ", work.sequence);
}

void ShmCommunicator::wait(Work work, double timeout_seconds) {
  const Entry entry(family_->inside());
  check_usable();
  wait_inside(work, {timeout_seconds});
}

bool ShmCommunicator::wait_for(Work work, double seconds) {
  const Entry entry(family_->inside());
  check_usable();
  return wait_inside(work, {seconds, false, now_ns() + ns_of(seconds)});
}

bool ShmCommunicator::done(Work work) {
  const Entry entry(family_->inside());
  check_usable();
  return guarded(*family_, [&] {
    check_known(work);
    family_->progress();
    if (complete(work.sequence)) return true;
    look_at_peers(target_of(work));
    return complete(work.sequence);
  });
}

bool ShmCommunicator::wait_inside(Work work, Deadline deadline) {
  return guarded(*family_, [&] {
    check_known(work);
    family_->progress();
    if (complete(work.sequence)) return true;
    const std::uint64_t start = now_ns();
    const Target target = target_of(work);
    const Statistics::Entry entry =
        target.transfer != 0 ? streams_.stats_of(target.transfer) : target.task.stats;
    const bool is_complete = block(target, deadline, [&] { return complete(work.sequence); });
    const bool timed = is_complete && target.transfer == 0;
    statistics_.add_waited(entry, (timed ? target.task.completed_ns : now_ns()) - start);
    return is_complete;
  });
}

ShmCommunicator::Target ShmCommunicator::target_of(Work work) const noexcept {
  const bool transfer = (work.sequence & kBetweenTwo) != 0;
  return {task(work.sequence), transfer ? work.sequence : 0};
}

// What holds a target up.
Need ShmCommunicator::need_of(Target target) const noexcept {
  return target.transfer != 0 ? streams_.need_of(target.transfer) : blocker(target.task).need;
}

bool ShmCommunicator::block(Target target, Deadline deadline,
                            const std::function<bool()>& reached) {
  Ladder& ladder = family_->ladder();
  const std::uint64_t& moves = family_->moves();
  ladder.restart();
  for (;;) {
    const std::uint64_t before = moves;
    family_->progress();
    if (reached()) return true;
    if (!deadline.is_error && now_ns() >= deadline.at_ns) return false;
    if (before != moves) {
      ladder.restart();
    } else if (!ladder.hold()) {
      inspect(target, deadline);
      const std::uint64_t now = now_ns();
      const bool bounded = deadline.seconds > 0 && deadline.at_ns > now;
      const std::uint64_t left = bounded ? deadline.at_ns - now : kSleepNs;
      sleep_unless(family_->record(), bell_of(target), std::min(left, kSleepNs), [&] {
        const std::uint64_t last = moves;
        family_->progress();
        return reached() || last != moves;
      });
      ladder.restart();
    }
  }
}

// With one thing to wait for, only the rank that I lack needs to wake me.
std::uint32_t ShmCommunicator::bell_of(Target target) const noexcept {
  const Task& waiting = blocker(target.task);
  const bool fills = target.transfer == 0 && waiting.staged && !waiting.lane_done &&
                     (waiting.path == Path::Exchange || !waiting.arrived);
  const Need need = need_of(target);
  const bool alone = family_->in_flight() == 1 && need.flag != Need::Flag::Finished;
  if (alone && !fills && need.first < need.last) return until_rank(group_.world(need.first));
  return kUntilAny;
}

// The task whose need holds `target` up: its own, or that of one before it which has my lane.
const Task& ShmCommunicator::blocker(const Task& target) const noexcept {
  const bool lacks_nothing = target.need.first >= target.need.last;
  if (target.arrived && (lacks_nothing || (target.staged && !target.has_lane)))
    for (std::uint64_t sequence = finished_ + 1; sequence < target.sequence; ++sequence)
      if (!task(sequence).complete) return task(sequence);
  return target;
}

void ShmCommunicator::compare_all() const {
  for (std::uint64_t sequence = finished_ + 1; sequence <= submitted_; ++sequence)
    if (const Task& each = task(sequence); !each.arrived)
      for (int r = each.need.first; r < each.need.last; ++r)
        if (r != group_.rank() && group_.has(each.need, r)) group_.compare(sequence, r);
}

// The slow path of waiting: is there still anything to wait for?
void ShmCommunicator::inspect(Target target, Deadline& deadline) {
  const std::uint64_t now = now_ns();
  if (deadline.at_ns == 0) deadline.at_ns = now + ns_of(deadline.seconds);
  if (family_->checked()) {
    for (const ShmCommunicator* group : family_->groups()) group->compare_all();
    look_at_peers(target);
  }
  if (family_->time_to_ask(now) && interrupted())
    fail(ErrorKind::Interrupted, "interrupted in ", missed(need_of(target)));
  if (deadline.is_error && deadline.seconds > 0 && now >= deadline.at_ns)
    late(need_of(target), deadline.seconds);
}

void ShmCommunicator::check_ranks() const {
  for (int r = 0; r < group_.size(); ++r) family_->check_rank(group_.world(r));
}

void ShmCommunicator::look_at_peers(Target target) {
  check_ranks();
  const bool watch = family_->time_to_watch(now_ns());
  const Need need = need_of(target);
  for (int r = need.first; r < need.last; ++r) {
    if (group_.has(need, r)) continue;
    const int world = group_.world(r);
    const bool left = group_.control(r).left.load() != 0;
    if (!left && (!watch || family_->liveness().alive(world))) continue;
    const std::uint64_t moves = family_->moves();
    family_->progress();
    if (moves != family_->moves()) return;  // its last flag was raised before its end
    check_ranks();                          // and so was what it had to say
    if (left)
      fail(ErrorKind::RankLost, "rank ", world, " has left the ",
           group_.id() == 0 ? "job" : "group", "; it is missed in ", missed(need));
    fail(ErrorKind::RankLost, "rank ", world, " (process ", group_.record(r).pid,
         ") has died; it is missed in ", missed(need));
  }
}

std::string ShmCommunicator::missed(const Need& need) const {
  const std::string what = need.flag == Need::Flag::Letter
                               ? streams_.describe(need.sequence)
                               : describe(group_.read(need.sequence, group_.rank()));
  return what + group_.where();
}

void ShmCommunicator::late(const Need& need, double seconds) const {
  const std::vector<int> missing = group_.missing(need);
  if (missing.empty()) return;
  const bool came = need.flag != Need::Flag::Published && need.flag != Need::Flag::Letter;
  fail(ErrorKind::CollectiveTimeout, list_ranks(missing),
       came ? " did not finish " : " did not come to ", missed(need), " within ", seconds, " s");
}

}  // namespace ngd::comm::shm
