// SPDX-License-Identifier: Apache-2.0
// A task: a pending collective, with the state of the algorithm that carries it out.
#pragma once

#include <variant>

#include "comm/shm/context.hpp"
#include "comm/shm/cooperative.hpp"
#include "comm/shm/exchange.hpp"
#include "comm/shm/flat.hpp"
#include "comm/shm/inline.hpp"
#include "comm/shm/nodes.hpp"
#include "comm/shm/ring.hpp"

namespace ngd::comm::shm {

// The state of a collective before its algorithm is chosen. The choice depends on the peers' calls,
// and not all of them have arrived (choose.hpp).
struct Undecided {};

using AlgorithmState = std::variant<Undecided, Inline, FlatDirect, FlatStaged, NodesDirect,
                                    NodesStaged, Ring, Exchange, Cooperative>;
// A Task object is used again for later collectives. The old state needs no destructor, so that
// nothing is freed or allocated for a new collective.
static_assert(std::is_trivially_destructible_v<AlgorithmState>);

struct Task : TaskHead {
  AlgorithmState state;
  // Only for the algorithm Exchange: the blocks that this rank copies from its peers, and the
  // blocks that the peers copy from this rank.
  Pieces pieces;

  // Return true if this task runs the algorithm `State`. Undecided: no algorithm is chosen yet.
  template <class State>
  bool runs() const noexcept {
    return std::holds_alternative<State>(state);
  }
  // Reset this object for a new collective. `pieces` keeps its memory and contents.
  void begin(std::uint64_t next_sequence) {
    static_cast<TaskHead&>(*this) = TaskHead{};
    state.emplace<Undecided>();
    sequence = next_sequence;
  }
};

}  // namespace ngd::comm::shm
