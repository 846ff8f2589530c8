// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/scheduler.hpp"

#include <utility>

#include "base/error.hpp"
#include "comm/shm/choose.hpp"

namespace ngd::comm::shm {

void Scheduler::advance_all() {
  for (std::uint64_t s = queue_.finished() + 1; s <= queue_.submitted(); ++s)
    if (Task& task = queue_.task(s); !task.is_complete) advance(task);
  queue_.finish();
}

void Scheduler::advance(Task& task) {
  if (!task.has_arrived) {
    start_early(task);
    if (!group_.met(task.need)) return;
    task.has_arrived = true;
    task.need = {};
    choose_from_all_calls(group_, task);
  }
  if (task.staging.is_needed && !task.staging.is_granted && !take_staging(task) &&
      !task.runs<Exchange>())  // an exchange can copy from its peers without staging buffers
    return;
  task.is_complete = run(task);
  if (task.is_complete) count(task);
}

// Do the work of a task that needs no peer, before all ranks have arrived. Copy chunks of the
// source to the staging buffers. In an exchange (all_gather, all_to_all and similar), copy the
// block that this rank keeps. Do nothing for a task without such work. Do nothing for an exchange
// whose data the cooperative algorithm may move instead (cooperative.hpp).
void Scheduler::start_early(Task& task) {
  auto* exchange = std::get_if<Exchange>(&task.state);
  if (exchange == nullptr && !task.staging.is_needed) return;
  if (exchange != nullptr && exchange->may_be_cooperative()) return;
  const bool has_staging = !task.staging.is_needed || task.staging.is_granted || take_staging(task);
  Context context{group_, staging_, task};
  if (exchange != nullptr) return exchange->start_early(context);
  if (!has_staging) return;
  if (auto* flat = std::get_if<FlatStaged>(&task.state)) flat->start_early(context);
  if (auto* nodes = std::get_if<NodesStaged>(&task.state)) nodes->start_early(context);
}

bool Scheduler::run(Task& task) {
  Context context{group_, staging_, task};
  return std::visit(
      [&](auto& state) -> bool {
        if constexpr (std::is_same_v<decltype(state), Undecided&>)
          fail(ErrorKind::Internal, "a collective without an algorithm");
        else
          return state.advance(context);
      },
      task.state);
}

// Give the staging buffers to a task if possible. Return true if the task has got them, and false
// if it must wait. Only one collective at a time fills the buffers, in the order of submission. So
// a task gets them if each earlier collective is complete, has filled its last buffer, or needs no
// buffers. A task that runs the ring algorithm also waits until all buffers are free.
bool Scheduler::take_staging(Task& task) {
  for (std::uint64_t s = queue_.finished() + 1; s < task.sequence; ++s) {
    const Task& earlier = queue_.task(s);
    const bool may_fill = earlier.runs<Undecided>() || earlier.staging.is_needed;
    if (may_fill && !earlier.staging.has_ended && !earlier.is_complete) return false;
  }
  if (task.runs<Ring>()) {  // the ring uses all staging buffers
    const std::uint64_t busy = staging_.first_busy(group_);
    task.staging.is_granted = busy == kBuffers;
    if (!task.staging.is_granted) task.need = staging_.guard(busy);
    return task.staging.is_granted;
  }
  const auto* exchange = std::get_if<Exchange>(&task.state);
  const std::uint64_t chunks =
      exchange != nullptr ? exchange->num_staged_chunks() : StagedChunks(group_, task).number();
  task.staging.is_granted = true;
  task.staging.first = staging_.reserve(chunks);
  group_.mine().slot(task.sequence).first_ticket = task.staging.first;
  return true;
}

// ---- statistics

void Scheduler::count(Task& task) noexcept {
  task.completed_ns = now_ns();
  const std::uint64_t ns = task.completed_ns - group_.mine().slot(task.sequence).arrived_ns;
  statistics_.add(task.stats, task.moved_bytes, ns + task.waited_ns, last_to_come(task.sequence));
}

int Scheduler::last_to_come(std::uint64_t sequence) const noexcept {
  int last = 0;
  std::uint64_t latest = 0;
  for (int r = 0; r < group_.size(); ++r) {
    const std::uint64_t arrived = group_.segment(r).slot(sequence).arrived_ns;
    if (arrived > latest) {
      latest = arrived;
      last = r;
    }
  }
  return last;
}

}  // namespace ngd::comm::shm
