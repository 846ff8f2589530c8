// SPDX-License-Identifier: Apache-2.0
// How a rank of the model accesses shared memory, raises flags, and wakes its peers.
#pragma once

#include "comm/protocol_state.hpp"

namespace ngd::comm::model {

class Access {
 public:
  Access(const Scenario& scenario, State& state, int me)
      : scenario_(scenario), state_(state), me_(me), rank_(state.ranks[me]) {}

 protected:
  bool is(Mutation mutation) const { return scenario_.mutation == mutation; }
  // Every access to memory that ranks share, except for the own slots.
  Rank& peer(int r) {
    has_accessed_ = true;
    return state_.ranks[r];
  }
  Slot& slot(int r, int sequence) { return peer(r).slots[sequence % kSlots]; }
  Task& task(int sequence) { return rank_.tasks[sequence % kSlots]; }
  const Command& command() const { return scenario_.scripts[me_][rank_.command]; }
  Kind kind(int sequence) const { return scenario_.kinds[sequence - 1]; }
  bool is_staged(int sequence) const { return kind(sequence) >= Kind::Staged; }
  bool is_exchange(int sequence) const {
    return kind(sequence) == Kind::Staged || kind(sequence) == Kind::InPlace;
  }
  static void expect(bool condition, const char* what) {
    if (!condition) throw Fault{what};
  }

  // ---- raising a flag, and ringing the bells

  enum Flag : std::uint8_t { kNone, kPublished, kStep, kTaken, kFinished, kPosted, kReceived };

  void raise(Flag flag, int which, int value, Mode after) {
    rank_.flag = static_cast<std::uint8_t>(flag << 4 | which);
    rank_.flag_value = static_cast<std::uint8_t>(value);
    if (!is(Mutation::BellsBeforeFlag)) store_flag();
    rank_.rung = 0;
    rank_.after = after;
    rank_.mode = Mode::Ring;
  }
  void store_flag() {
    has_accessed_ = true;
    const int which = rank_.flag & 15;
    switch (static_cast<Flag>(rank_.flag >> 4)) {
      case kPublished:
        rank_.slots[which].published = rank_.flag_value;
        break;
      case kStep:
        rank_.slots[which].step = rank_.flag_value;
        break;
      case kTaken:
        rank_.slots[which].taken = rank_.flag_value;
        break;
      case kFinished:
        rank_.finished = rank_.flag_value;
        break;
      case kPosted:
        rank_.posted[which] = rank_.flag_value;
        break;
      case kReceived:
        rank_.received[which] = rank_.flag_value;
        break;
      case kNone:
        break;
    }
    rank_.flag = rank_.flag_value = 0;
  }

  // One look at one peer.
  void ring() {
    if (rank_.rung == me_) ++rank_.rung;
    if (rank_.rung >= scenario_.ranks) {
      if (rank_.flag != 0) store_flag();
      rank_.rung = 0;
      rank_.mode = rank_.after;
      rank_.after = Mode::Script;
      return;
    }
    const std::uint8_t sleeping = peer(rank_.rung).sleeping;
    if (sleeping == kUntilAny || sleeping == me_ + 1) {
      // The exchange of wake(): only one rank wakes it.
      peer(rank_.rung).sleeping = kAwake;
      rank_.mode = Mode::Wake;
    } else {
      ++rank_.rung;
    }
  }
  void wake() {
    Rank& sleeper = peer(rank_.rung++);
    if (sleeper.until != 0) sleeper.bell = 1;
    if (sleeper.mode == Mode::Asleep) sleeper.mode = Mode::Rise;
    rank_.mode = Mode::Ring;
  }

  // ---- the passes over all works (protocol_machine.hpp)

  void next_work() { ++rank_.work; }
  void moved() { rank_.moved = 1; }
  // A work cannot continue in this pass.
  void end_of_work(Task& each) {
    each.activity = 0;
    next_work();
  }

  const Scenario& scenario_;
  State& state_;
  int me_;
  Rank& rank_;
  bool has_accessed_ = false;  // shared memory, in this step
};

}  // namespace ngd::comm::model
