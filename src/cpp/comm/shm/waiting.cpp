// SPDX-License-Identifier: Apache-2.0
// The communicator's waiting: until what, how long, and whether there is still anything to wait
// for.
#include <algorithm>
#include <new>

#include "base/error.hpp"
#include "comm/messages.hpp"
#include "comm/shm/guarded.hpp"
#include "comm/shm/shm_communicator.hpp"

namespace ngd::comm::shm {

namespace {

constexpr std::uint64_t kSleepNs = 50'000'000;   // between two looks at the peers
constexpr std::uint64_t kLongNs = 100'000'000;   // a wait of this length is published
constexpr std::uint64_t kOldNs = 1'000'000'000;  // age of a published wait that is ignored

std::uint64_t ns_of(double seconds) {
  return static_cast<std::uint64_t>(std::clamp(seconds, 0.0, 1e9) * 1e9);
}

}  // namespace

void ShmCommunicator::check_known(Work work) const {
  const bool known = is_transfer(work)
                         ? streams_.known(work)
                         : work.sequence >= 1 && work.sequence <= submitted_ + backlog_.size();
  check(known, "a work that was never submitted: ", work.sequence);
}

void ShmCommunicator::wait(Work work, double timeout_seconds) {
  check_not_child();
  const Inside inside(family_->monitor());
  check_usable([&] { return describe_work(work); });
  wait_inside(work, {timeout_seconds});
}

void ShmCommunicator::wait_on(Work work, double timeout_seconds, double waited_seconds) {
  check_not_child();
  const Inside inside(family_->monitor());
  check_usable([&] { return describe_work(work); });
  Deadline deadline{timeout_seconds};
  if (timeout_seconds > 0) deadline.at_ns = now_ns() + ns_of(timeout_seconds - waited_seconds);
  wait_inside(work, deadline);
}

std::vector<int> ShmCommunicator::missing(Work work) const {
  if (family_->in_child()) return {};
  const Locked locked(family_->monitor(), family_->record());
  if (closed_ || family_->failed() || complete(work.sequence)) return {};
  check_known(work);
  return group_.missing(need_of(work));
}

void ShmCommunicator::note_awaited(int awaited) noexcept {
  if (family_->in_child()) return;
  RankRecord& mine = family_->record();
  mine.awaited.store(awaited, std::memory_order_relaxed);
  mine.awaited_ns.store(awaited < 0 ? 0 : now_ns(), std::memory_order_release);
}

int ShmCommunicator::awaited_by(int rank) const noexcept {
  const RankRecord& theirs = group_.record(rank);
  const std::uint64_t noted_ns = theirs.awaited_ns.load(std::memory_order_acquire);
  const bool is_new = noted_ns != 0 && now_ns() - std::min(noted_ns, now_ns()) < kOldNs;
  return is_new ? theirs.awaited.load(std::memory_order_relaxed) : -1;
}

bool ShmCommunicator::wait_for(Work work, double seconds) {
  check_not_child();
  const Inside inside(family_->monitor());
  check_usable([&] { return describe_work(work); });
  return wait_inside(work, {seconds, false, now_ns() + ns_of(seconds)});
}

bool ShmCommunicator::done(Work work) {
  check_not_child();
  const Inside inside(family_->monitor());
  check_usable([&] { return describe_work(work); });
  return guarded(*family_, [&] {
    check_known(work);
    family_->progress();
    if (complete(work.sequence)) return true;
    look_at_peers(work);
    return complete(work.sequence);
  });
}

bool ShmCommunicator::wait_inside(Work work, Deadline deadline) {
  return guarded(*family_, [&] {
    check_known(work);
    family_->progress();
    if (complete(work.sequence)) return true;
    const std::uint64_t start = now_ns();
    const Statistics::Entry entry = stats_of(work);
    const bool is_complete = block(work, deadline);
    statistics_.add_waited(entry, (is_complete ? end_of(work) : now_ns()) - start);
    return is_complete;
  });
}

// When a complete work ended; I may have been pushed off my core since.
std::uint64_t ShmCommunicator::end_of(Work work) const noexcept {
  if (is_transfer(work)) return streams_.finished_ns();
  const Task& waited_for = task(work.sequence);  // its slot may serve another one already
  return waited_for.sequence == work.sequence ? waited_for.completed_ns : now_ns();
}

Statistics::Entry ShmCommunicator::stats_of(Work work) const noexcept {
  if (is_transfer(work)) return streams_.stats_of(work.sequence);
  if (in_backlog(work)) return backlog_[work.sequence - submitted_ - 1].stats;
  return task(work.sequence).stats;
}

// What holds a work up.
Need ShmCommunicator::need_of(Work work) const noexcept {
  if (is_transfer(work)) return streams_.need_of(work.sequence);
  const Task* task = blocker(work);
  return task != nullptr ? task->need : next_slots_;
}

// Another thread had its turn, or my caller's code ran: is there still a group?
void ShmCommunicator::check_still_open(Work work) const {
  if (family_->failed()) refuse(describe_work(work));
  if (!closed_ && !family_->closed()) return;
  const bool waits = in_backlog(work);
  const Kind kind =
      waits ? backlog_[work.sequence - submitted_ - 1].collective.kind : task(work.sequence).kind;
  const std::string call =
      is_transfer(work) ? streams_.describe(work.sequence) : std::string(name_of(kind));
  fail(ErrorKind::GroupClosed, closed_while_waiting(call));
}

bool ShmCommunicator::block(Work work, Deadline deadline) {
  struct Forget {
    const Deadline& deadline;
    RankRecord& record;
    ~Forget() {
      if (deadline.noted) note_wait(record, "");
    }
  } forget{deadline, family_->record()};
  return block_until(work, deadline);
}

bool ShmCommunicator::block_until(Work work, Deadline& deadline) {
  Ladder& ladder = family_->ladder();
  Monitor& monitor = family_->monitor();
  const std::uint64_t& moves = family_->moves();
  ladder.restart();
  for (;;) {
    const std::uint64_t before = moves;
    family_->progress();
    if (complete(work.sequence)) return true;
    if (!deadline.is_error && now_ns() >= deadline.at_ns) {
      if (family_->checked()) look_at_peers(work);  // who asks again and again hears of them here
      return complete(work.sequence);
    }
    if (monitor.wanted()) [[unlikely]] {
      monitor.give_way();
      check_still_open(work);
    }
    if (before != moves) {
      ladder.restart();
    } else if (!ladder.hold()) {
      inspect(work, deadline);
      const std::uint64_t now = now_ns();
      const bool bounded = deadline.seconds > 0 && deadline.at_ns > now;
      const std::uint64_t left = bounded ? deadline.at_ns - now : kSleepNs;
      sleep_unless(family_->record(), ladder, bell_of(work), std::min(left, kSleepNs), [&] {
        const std::uint64_t last = moves;
        family_->progress();
        return complete(work.sequence) || last != moves || monitor.wanted_before_sleep();
      });
      ladder.restart();
    }
  }
}

// With one thing to wait for, only the rank that I lack needs to wake me.
std::uint32_t ShmCommunicator::bell_of(Work work) const noexcept {
  const Task* waiting = is_transfer(work) ? nullptr : blocker(work);
  const bool fills = waiting != nullptr && waiting->staged && !waiting->lane_done &&
                     (waiting->path == Path::Exchange || !waiting->arrived);
  const Need need = need_of(work);
  const bool alone = family_->in_flight() == 1 && need.flag != Need::Flag::Finished;
  if (alone && !fills && need.first < need.last) return until_rank(group_.world(need.first));
  return kUntilAny;
}

// The task whose need holds a work up: its own; that of one before it which has my lane, or its
// slot; null where the work waits for a slot that only peers still use.
const Task* ShmCommunicator::blocker(Work work) const noexcept {
  const Task* own = in_backlog(work) ? nullptr : &task(work.sequence);
  if (own != nullptr) {
    const bool lacks_nothing = own->need.first >= own->need.last;
    if (!own->arrived || (!lacks_nothing && (!own->staged || own->has_lane))) return own;
  }
  const std::uint64_t end = own != nullptr ? work.sequence : submitted_ + 1;
  for (std::uint64_t sequence = finished_ + 1; sequence < end; ++sequence)
    if (!task(sequence).complete) return &task(sequence);
  return own;
}

void ShmCommunicator::compare_all() const {
  for (std::uint64_t sequence = finished_ + 1; sequence <= submitted_; ++sequence)
    if (const Task& each = task(sequence); !each.arrived)
      for (int r = each.need.first; r < each.need.last; ++r)
        if (r != group_.rank() && group_.has(each.need, r)) group_.compare(sequence, r);
}

// The slow path of waiting: is there still anything to wait for?
void ShmCommunicator::inspect(Work work, Deadline& deadline) {
  const std::uint64_t now = now_ns();
  if (deadline.at_ns == 0) deadline.at_ns = now + ns_of(deadline.seconds);
  if (deadline.slow_since_ns == 0) deadline.slow_since_ns = now;
  if (!deadline.noted && now - deadline.slow_since_ns > kLongNs) {
    deadline.noted = true;
    try {
      note_wait(family_->record(), missed(need_of(work)));
    } catch (const std::bad_alloc&) {  // who misses me is told less; this wait goes on
    }
  }
  if (family_->checked()) {
    for (const ShmCommunicator* group : family_->groups()) group->compare_all();
    look_at_peers(work);
    look_at_other_groups();
  }
  if (family_->time_to_ask(now)) ask(work);
  if (deadline.is_error && deadline.seconds > 0 && now >= deadline.at_ns)
    late(need_of(work), deadline.seconds);
}

void ShmCommunicator::ask(Work work) {
  bool is_over = false;
  {
    const Outside outside(family_->monitor());
    is_over = interrupted();
  }
  check_still_open(work);
  if (is_over) fail(ErrorKind::Interrupted, "interrupted in ", missed(need_of(work)));
}

void ShmCommunicator::check_peers() const {
  for (int r = 0; r < group_.size(); ++r) family_->check_rank(group_.world(r));
}

void ShmCommunicator::look_at_peers(Work work) {
  check_peers();
  const bool watch = family_->time_to_watch(now_ns());
  const Need need = need_of(work);
  for (int r = need.first; r < need.last; ++r) {
    if (group_.has(need, r)) continue;
    const int world = group_.world(r);
    const bool left = group_.control(r).left.load() != 0;
    if (!left && (!watch || family_->liveness().alive(world))) continue;
    const std::uint64_t moves = family_->moves();
    family_->progress();
    if (moves != family_->moves() || group_.has(need, r))
      return;       // its last flag was raised before its end
    check_peers();  // and so was what it had to say
    if (left)
      fail_of({world}, ErrorKind::RankLost, rank_left(missed(need), world, group_.id() == 0));
    fail_of({world}, ErrorKind::RankLost, rank_died(missed(need), world, group_.record(r).pid));
  }
}

// What a rank has said in another group, which a program needs as it needs this one.
void ShmCommunicator::look_at_other_groups() const {
  if (!watched()) return;
  for (const ShmCommunicator* other : family_->groups())
    if (other->watched()) other->check_peers();
}

std::string ShmCommunicator::missed(const Need& need) const {
  const std::string what = need.flag == Need::Flag::Letter
                               ? streams_.describe(need.sequence)
                               : describe(group_.call(need.sequence, group_.rank()));
  return what + group_.where();
}

void ShmCommunicator::late(const Need& need, double seconds) const {
  const std::vector<int> missing = group_.missing(need);
  if (missing.empty()) return;
  const bool has_arrived = need.flag != Need::Flag::Published && need.flag != Need::Flag::Letter;
  std::vector<std::string> facts;
  bool is_in_other_call = false;
  for (int r = need.first; r < need.last; ++r) {
    if (group_.has(need, r)) continue;
    const std::string wait = has_arrived ? "" : noted_wait(group_.record(r));
    is_in_other_call |= !wait.empty();
    facts.push_back(concat("rank ", group_.world(r), " (process ", group_.record(r).pid, ") ",
                           has_arrived    ? "takes part in the call"
                           : wait.empty() ? whereabouts(r)
                                          : "waits in " + wait,
                           "."));
  }
  const int pid = missing.size() == 1 ? family_->segment(missing.front()).record().pid : 0;
  fail_of(missing, ErrorKind::CollectiveTimeout,
          comm::late(missed(need), missing, has_arrived, seconds, facts,
                     late_advice(is_in_other_call, pid)));
}

// The last call of a rank that is in no collective. Those of ngd.init() are not the user's.
std::string ShmCommunicator::whereabouts(int rank) const {
  const std::uint64_t last = group_.control(rank).sequence.load();
  if (last == 0 || group_.segment(rank).slot(last).published.load() != last)
    return "is in no collective. It has called none of this group";
  const CallRecord& call = group_.call(last, rank);
  if (std::string_view(call.site) == "ngd.init()")
    return "is in no collective. It has called none since ngd.init()";
  return concat("is in no collective. Its last call in this group was ", describe(call));
}

}  // namespace ngd::comm::shm
