// SPDX-License-Identifier: Apache-2.0
// A model of the shared memory protocol, and a search through all that can happen in it.
//
// Ranks are state machines that make one access to shared memory per step. Memory is sequentially
// consistent, as the engine's flags are. From the first state on, the search visits every state
// that any interleaving of the ranks' steps can reach (breadth first). It must never find
//   - data of another collective than the reader's: a block, a staging buffer, a payload or a
//     letter that was rewritten before all had read it;
//   - a state in which no rank can continue: all ranks that are not done sleep, and no rank will
//     wake them.
// (The engine wakes itself now and then to look at its peers. The model does not, so it shows a
// lost wake-up.)
//
// The model has the flags published, step, taken and finished; slots that are used again; inline,
// direct and staged collectives; the guards of staging buffers; sends and receives; the sleep and
// the doorbell of wait.hpp, and the rank until which one sleeps. In one pass over its works, a rank
// acts in the order of the engine's. A mutation leaves out one rule of the protocol, and the search
// must detect each mutation.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "comm/protocol_machine.hpp"

namespace ngd::comm::model {

struct Verdict {
  std::string fault;  // "" = none
  std::size_t states = 0;
};

// The states that were visited. It keeps 64 bits of each: the probability that two of ten million
// states are confused is 3e-6 (Wolper and Leroy, "Reliable hashing without collision detection",
// 1993).
class Seen {
 public:
  Seen() : table_(1 << 16) {}
  std::size_t size() const { return size_; }
  bool insert(const State& state) {
    if (2 * size_ > table_.size()) grow();
    const bool is_new = add(hash_of(state));
    size_ += is_new;
    return is_new;
  }

 private:
  static std::uint64_t hash_of(const State& state) {
    std::uint64_t words[(sizeof(State) + 7) / 8] = {};
    std::memcpy(words, &state, sizeof state);
    std::uint64_t hash = 0x9e3779b97f4a7c15;
    for (const std::uint64_t word : words) {
      hash = (hash ^ word) * 0xff51afd7ed558ccd;
      hash ^= hash >> 32;
    }
    return hash | 1;
  }
  bool add(std::uint64_t hash) {
    std::size_t at = hash >> 7 & (table_.size() - 1);
    for (; table_[at] != 0; at = (at + 1) & (table_.size() - 1))
      if (table_[at] == hash) return false;
    table_[at] = hash;
    return true;
  }
  void grow() {
    std::vector<std::uint64_t> old(2 * table_.size());
    old.swap(table_);
    for (const std::uint64_t hash : old)
      if (hash != 0) add(hash);
  }

  std::vector<std::uint64_t> table_;
  std::size_t size_ = 0;
};

inline Verdict search(const Scenario& scenario) {
  State first;
  std::memset(static_cast<void*>(&first), 0, sizeof first);
  for (int r = scenario.ranks; r < kMaxRanks; ++r) first.ranks[r].mode = Mode::Done;
  Seen seen;
  seen.insert(first);
  std::vector<State> frontier{first}, next;
  try {
    for (; !frontier.empty(); frontier.swap(next)) {
      next.clear();
      for (const State& state : frontier) {
        bool any_moves = false, all_done = true;
        for (int r = 0; r < scenario.ranks; ++r) {
          all_done = all_done && state.ranks[r].mode == Mode::Done;
          State after = state;
          if (!make_step(scenario, after, r)) continue;
          any_moves = true;
          if (seen.insert(after)) next.push_back(after);
        }
        if (!any_moves && !all_done) throw Fault{"no rank can continue"};
      }
    }
  } catch (const Fault& fault) {
    return {fault.what, seen.size()};
  }
  return {"", seen.size()};
}

}  // namespace ngd::comm::model
