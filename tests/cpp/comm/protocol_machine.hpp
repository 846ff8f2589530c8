// SPDX-License-Identifier: Apache-2.0
// A rank of the model: its script, its passes over all works, and how it sleeps.
#pragma once

#include "comm/protocol_algorithms.hpp"

namespace ngd::comm::model {

class Stepper : public Algorithms {
 public:
  using Algorithms::Algorithms;

  // Continue up to the next access to shared memory.
  void step() {
    do {
      act();
    } while (!has_accessed_ && rank_.mode != Mode::Done);
  }

 private:
  void act() {
    switch (rank_.mode) {
      case Mode::Script:
        return script();
      case Mode::Pass:
        return pass();
      case Mode::Ring:
        return ring();
      case Mode::Wake:
        return wake();
      case Mode::ReadBell:
        has_accessed_ = true;
        rank_.bell = 0;
        rank_.mode = is(Mutation::RecheckTooEarly) ? begin_pass(1) : Mode::StoreSleeping;
        return;
      case Mode::StoreSleeping:
        has_accessed_ = true;
        rank_.sleeping = rank_.until;
        if (is(Mutation::NoRecheck) || is(Mutation::RecheckTooEarly))
          rank_.mode = Mode::Futex;
        else
          rank_.mode = begin_pass(1);
        return;
      case Mode::Futex:
        has_accessed_ = true;
        if (is(Mutation::BellReadTooLate)) rank_.bell = 0;
        rank_.mode = rank_.bell == 0 ? Mode::Asleep : Mode::Rise;
        return;
      case Mode::Rise:
        has_accessed_ = true;
        rank_.sleeping = kAwake;
        rank_.bell = rank_.until = 0;
        rank_.mode = begin_pass(0);
        return;
      case Mode::Asleep:
      case Mode::Done:
        return;
    }
  }

  Mode begin_pass(int rechecking) {
    rank_.work = 0;
    rank_.moved = 0;
    rank_.rechecking = static_cast<std::uint8_t>(rechecking);
    return Mode::Pass;
  }

  // ---- the script

  void script() {
    if (rank_.command == scenario_.scripts[me_].size()) {
      rank_.mode = Mode::Done;
      return;
    }
    switch (command().op) {
      case Command::Start:
        return start(command().argument);
      case Command::Send:
      case Command::Receive:
        rank_.transfer = static_cast<std::uint8_t>(command().argument + 1);
        rank_.transfer_phase = 0;
        rank_.mode = begin_pass(0);
        return;
      case Command::Wait:
        rank_.mode = begin_pass(0);
        return;
    }
  }

  void start(int sequence) {
    if (sequence > kSlots && !rank_.waits_for_slot && !is(Mutation::SlotsAnyTime)) {
      rank_.waits_for_slot = 1;
      rank_.slot_next = 0;
      rank_.mode = begin_pass(0);
      return;
    }
    if (!rank_.rewritten) {  // my operand: in the shared arena, or beside the flag
      rank_.rewritten = 1;
      if (kind(sequence) == Kind::Direct) {
        peer(me_).block = static_cast<std::uint8_t>(sequence);
        return;
      }
    }
    Slot& mine = rank_.slots[sequence % kSlots];
    mine.payload = static_cast<std::uint8_t>(sequence);
    mine.step = mine.taken = 0;
    task(sequence) = Task{};
    task(sequence).sequence = static_cast<std::uint8_t>(sequence);
    if (is_staged(sequence)) {
      task(sequence).first_ticket = rank_.tickets;
      mine.first_ticket = rank_.tickets;  // early: no peer reads it before the first step
      rank_.tickets = static_cast<std::uint8_t>(rank_.tickets + scenario_.chunks);
    }
    rank_.submitted = static_cast<std::uint8_t>(sequence);
    rank_.waits_for_slot = rank_.rewritten = rank_.slot_next = 0;
    ++rank_.command;
    raise(kPublished, sequence % kSlots, sequence, Mode::Script);
  }

  // ---- a pass over all works: tasks in sequence, then the transfer, then the wait for a slot

  bool target_reached() {
    if (rank_.waits_for_slot) return rank_.slot_next >= scenario_.ranks;
    if (command().op != Command::Wait) return rank_.transfer == 0;
    return task(command().argument).complete ||
           task(command().argument).sequence != command().argument;
  }

  bool advances(int work) {
    if (!is(Mutation::OnlyItsTarget)) return true;
    if (work < kSlots)
      return command().op == Command::Wait && oldest(work).sequence == command().argument;
    return command().op != Command::Wait;
  }
  // The works of a pass: the task of the oldest sequence, the next, ...
  Task& oldest(int work) {
    const int first = rank_.submitted < kSlots ? 1 : rank_.submitted - kSlots + 1;
    return task(first + work);
  }

  void pass() {
    if (rank_.work < kSlots) {
      Task& each = oldest(rank_.work);
      if (each.sequence == 0 || each.complete || !advances(rank_.work))
        ++rank_.work;
      else if (each.sequence <= rank_.submitted)
        advance(each);
      else
        ++rank_.work;
      return;
    }
    if (rank_.work == kSlots) return rank_.transfer != 0 ? advance_transfer() : next_work();
    if (rank_.work == kSlots + 1)
      return rank_.waits_for_slot && rank_.slot_next < scenario_.ranks ? look_for_slot()
                                                                       : next_work();
    end_pass();
  }
  void end_pass() {
    const bool reached = target_reached();
    rank_.work = 0;
    if (rank_.rechecking) {
      const bool sleeps = !reached && !rank_.moved;
      rank_.moved = rank_.rechecking = 0;
      if (is(Mutation::RecheckTooEarly) && sleeps)
        rank_.mode = Mode::StoreSleeping;
      else
        rank_.mode = sleeps ? Mode::Futex : Mode::Rise;
    } else if (reached) {
      rank_.moved = 0;
      if (!rank_.waits_for_slot) ++rank_.command;
      rank_.mode = Mode::Script;
    } else if (rank_.moved) {
      rank_.mode = begin_pass(0);
    } else {
      // Another pass would see the same flags: the rank goes to sleep.
      rank_.until = bell_of();
      rank_.mode = Mode::ReadBell;
    }
  }

  // With one work and one rank that it lacks, only that rank needs to wake me.
  std::uint8_t bell_of() {
    int works = rank_.transfer != 0;
    const Task* only = nullptr;
    for (Task& each : rank_.tasks)
      if (each.sequence != 0 && !each.complete && each.sequence <= rank_.submitted) {
        ++works;
        only = &each;
      }
    if (rank_.waits_for_slot) return kUntilAny;
    if (works != 1 && !is(Mutation::SleepsForTheWrong)) return kUntilAny;
    if (only == nullptr) return rank_.transfer;
    const bool fills = is_staged(only->sequence) && only->filled < scenario_.chunks;
    if (fills) return kUntilAny;
    const int lacked = only->arrived && is_exchange(only->sequence) ? only->producer : only->next;
    return static_cast<std::uint8_t>((lacked == me_ ? lacked + 1 : lacked) + 1);
  }

  void look_for_slot() {
    if (rank_.slot_next == me_) {
      ++rank_.slot_next;
      return;
    }
    const int needed = command().argument - kSlots;
    if (rank_.finished < needed || peer(rank_.slot_next).finished < needed) return next_work();
    ++rank_.slot_next;
    moved();
  }

  // ---- sends and receives: one letter at a time

  void advance_transfer() {
    const int other = rank_.transfer - 1;
    if (command().op == Command::Send) {
      if (rank_.transfer_phase == 0) {
        if (rank_.posted[other] > peer(other).received[me_]) return next_work();
        rank_.transfer_phase = 1;
        peer(me_).letters[other] = static_cast<std::uint8_t>(rank_.posted[other] + 1);
        return;
      }
      return end_transfer(kPosted, other, rank_.posted[other] + 1);
    }
    if (rank_.transfer_phase == 0) {
      if (peer(other).posted[me_] <= rank_.received[other]) return next_work();
      rank_.transfer_phase = 1;
      return;
    }
    expect(peer(other).letters[me_] == rank_.received[other] + 1,
           "a letter is rewritten before it is read");
    end_transfer(kReceived, other, rank_.received[other] + 1);
  }
  void end_transfer(Flag flag, int other, int value) {
    rank_.transfer = rank_.transfer_phase = 0;
    moved();
    next_work();
    raise(flag, other, value, Mode::Pass);
  }
};

// Make the next step of a rank. Return false if it can make none.
inline bool make_step(const Scenario& scenario, State& state, int me) {
  const Mode mode = state.ranks[me].mode;
  if (mode == Mode::Done || mode == Mode::Asleep) return false;
  Stepper(scenario, state, me).step();
  return true;
}

}  // namespace ngd::comm::model
