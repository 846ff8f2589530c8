// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/works.hpp"

#include "base/error.hpp"

namespace ngd::comm::shm {

void Works::check_known(Work work) const {
  const bool is_known =
      is_letter(work) ? letters_.is_known(work.sequence) : queue_.is_known(work.sequence);
  check(is_known, "a work that was never submitted: ", work.sequence);
}

Statistics::Entry Works::stats_of(Work work) const noexcept {
  if (is_letter(work)) return letters_.stats_of(work.sequence);
  if (is_in_backlog(work)) return queue_.backlogged_stats(work.sequence);
  return queue_.task(work.sequence).stats;
}

std::uint64_t Works::end_of(Work work) const noexcept {
  if (is_letter(work)) return letters_.finished_ns();
  // If the Task object of this work already serves a later collective, its times are those of the
  // later collective.
  const Task& task = queue_.task(work.sequence);
  return task.sequence == work.sequence ? task.completed_ns : now_ns();
}

Need Works::need_of(Work work) const noexcept {
  if (is_letter(work)) return letters_.need_of(work.sequence);
  const Task* task = blocker(work);
  return task != nullptr ? task->need : queue_.need_of_slot();
}

// Return the task (a pending collective) that must make progress next so that a work completes.
// This is the work's own task, or an earlier task that must be complete before the work gets its
// slot (the record that the peers read) or its staging buffers. Return null if the work has no slot
// yet and all tasks of this rank are complete. The work then waits until the peers have finished
// the collective whose slot it needs.
const Task* Works::blocker(Work work) const noexcept {
  const Task* own_task = is_in_backlog(work) ? nullptr : &queue_.task(work.sequence);
  if (own_task != nullptr) {
    const bool lacks_nothing = own_task->need.first >= own_task->need.last;
    const bool has_staging = !own_task->staging.is_needed || own_task->staging.is_granted;
    if (!own_task->has_arrived || (!lacks_nothing && has_staging)) return own_task;
  }
  const std::uint64_t end = own_task != nullptr ? work.sequence : queue_.submitted() + 1;
  for (std::uint64_t sequence = queue_.finished() + 1; sequence < end; ++sequence)
    if (!queue_.task(sequence).is_complete) return &queue_.task(sequence);
  return own_task;
}

int Works::only_awaited_rank(Work work) const noexcept {
  const Task* task = is_letter(work) ? nullptr : blocker(work);
  // If this rank must still fill staging buffers for this work, any peer may have to wake this
  // rank. When a peer reports that it has taken a chunk, this rank may fill the chunk's buffer
  // again.
  if (task != nullptr && task->staging.is_needed && !task->staging.has_ended &&
      (task->runs<Exchange>() || !task->has_arrived))
    return -1;
  const Need need = need_of(work);
  const bool is_one = need.flag != Need::Flag::Finished && need.first < need.last;
  return is_one ? group_.world(need.first) : -1;
}

void Works::check_calls() const {
  for (std::uint64_t sequence = queue_.finished() + 1; sequence <= queue_.submitted(); ++sequence)
    if (const Task& task = queue_.task(sequence); !task.has_arrived)
      for (int r = task.need.first; r < task.need.last; ++r)
        if (r != group_.rank() && group_.has(task.need, r)) group_.compare(sequence, r);
}

// ---- messages

std::string Works::describe(Work work) const {
  if (group_.is_closed()) return "wait";  // another group may use this group's memory now
  if (is_letter(work)) return letters_.describe(work.sequence);
  if (is_in_backlog(work)) return comm::describe(queue_.backlogged(work.sequence));
  if (group_.mine().slot(work.sequence).published.load() != work.sequence) return "wait";
  return comm::describe(group_.call(work.sequence, group_.rank())) + group_.where();
}

std::string Works::describe_need(const Need& need) const {
  const std::string call = need.flag == Need::Flag::Letter
                               ? letters_.describe(need.sequence)
                               : comm::describe(group_.call(need.sequence, group_.rank()));
  return call + group_.where();
}

std::string Works::name_of(Work work) const {
  if (is_letter(work)) return letters_.describe(work.sequence);
  const Kind kind =
      is_in_backlog(work) ? queue_.backlogged(work.sequence).kind : queue_.task(work.sequence).kind;
  return std::string(comm::name_of(kind));
}

}  // namespace ngd::comm::shm
