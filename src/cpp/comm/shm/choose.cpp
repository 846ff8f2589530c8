// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/choose.hpp"

namespace ngd::comm::shm {

namespace {

// Return true if the algorithms for several NUMA nodes (nodes.cpp) apply, not the flat ones
// (flat.cpp).
bool runs_by_nodes(const Group& group, const TaskHead& task) noexcept {
  return task.kind == Kind::AllReduce && group.nodes().count > 1 && !is_half(task.dtype);
}

// Return true if the operands of `rank` in an all_reduce or a reduce are in the shared arena.
bool has_shared_operands(const Group& group, const TaskHead& task, int rank) noexcept {
  const Slot& slot = group.segment(rank).slot(task.sequence);
  return slot.source_offset != kPrivate &&
         (!gets_result(task, rank) || slot.destination_offset != kPrivate);
}

// Set the algorithm to NodesStaged or FlatStaged, and set task.staging.is_needed to true.
void choose_staged(const Group& group, Task& task) {
  task.staging.is_needed = true;
  if (runs_by_nodes(group, task))
    task.state.emplace<NodesStaged>();
  else
    task.state.emplace<FlatStaged>();
}

// Set the algorithm of an all_reduce or reduce that has none yet, from the operands of all ranks.
void choose_reduction(const Group& group, Task& task) {
  bool is_shared = true;
  for (int r = 0; is_shared && r < group.size(); ++r)
    is_shared = has_shared_operands(group, task, r);
  if (task.algorithm == Algorithm::Ring) {
    task.state.emplace<Ring>();
    task.staging.is_needed = !is_shared || is_half(task.dtype);
  } else if (!is_shared) {
    choose_staged(group, task);
  } else if (runs_by_nodes(group, task)) {
    task.state.emplace<NodesDirect>();
  } else {
    task.state.emplace<FlatDirect>();
  }
}

}  // namespace

// The ring is used only on request, because the flat algorithm is faster for all sizes. All-reduce
// of float32 in the shared arena, in us, on a machine with 2 cores (AMD EPYC 9005). The group of 4
// ranks has 2 ranks per core:
//   bytes          8   64 Ki   1 Mi   16 Mi
//   2 ranks flat   0.5   3.3     34     541
//           ring   1.5   4.6     46    1666
//   4 ranks flat   2.4    26    318    7819
//           ring  12.7    57    682   10575
Algorithm requested_algorithm(const Collective& collective, Algorithm preferred,
                              int ranks) noexcept {
  if (collective.kind != Kind::AllReduce) return Algorithm::Flat;
  const Algorithm requested =
      collective.algorithm == Algorithm::Auto ? preferred : collective.algorithm;
  return requested == Algorithm::Ring && ranks > 1 ? Algorithm::Ring : Algorithm::Flat;
}

void choose_from_call(const Group& group, Task& task, const Collective& collective) {
  const bool is_reduction = task.kind == Kind::AllReduce || task.kind == Kind::Reduce;
  if (!is_reduction && task.kind != Kind::Barrier)
    task.state.emplace<Exchange>(group, task, collective, task.pieces);
  else if (task.bytes() <= kInlineBytes && task.algorithm == Algorithm::Flat)
    task.state.emplace<Inline>();
}

void choose_from_operands(const Group& group, Task& task) {
  if (auto* exchange = std::get_if<Exchange>(&task.state))
    exchange->publish_operands(group, task);
  else if (task.algorithm == Algorithm::Flat && !has_shared_operands(group, task, group.rank()))
    choose_staged(group, task);
}

void choose_from_all_calls(const Group& group, Task& task) {
  if (task.runs<Undecided>()) return choose_reduction(group, task);
  auto* exchange = std::get_if<Exchange>(&task.state);
  if (exchange == nullptr) return;
  if (exchange->may_be_cooperative() && Cooperative::suits_all(group, task)) {
    task.state.emplace<Cooperative>();
    task.staging.is_needed = false;
    return;
  }
  exchange->add_peers(group, task);
}

}  // namespace ngd::comm::shm
