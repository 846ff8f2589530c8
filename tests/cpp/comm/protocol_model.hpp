// SPDX-License-Identifier: Apache-2.0
// A model of the shared memory protocol, and a search through all that can happen in it.
//
// Ranks are little machines that make one access to shared memory a step; memory is sequentially
// consistent, as the engine's flags are. From the first state on, every state that any interleaving
// of the ranks' steps can reach is visited (breadth first). Two things must never be found:
//   - data that are not those of the collective that reads them: a block, a buffer of the lane, a
//     payload or a letter that was rewritten before all had read it;
//   - a state in which nobody can go on: all that are not done sleep, and nobody will wake them.
// (The engine wakes itself now and then to look at its peers; here nobody does, so that a wake-up
// that is lost is seen.)
//
// What is modelled: the flags published, step, taken and finished, slots used again; inline, direct
// and staged collectives; the lane's guards; sends and receives; wait.hpp's sleeping and doorbell,
// with the rank for which one sleeps. What a rank does in one pass over its works, and in which
// order, is as in the engine. Each rule of the protocol can be left out by a mutation, and each
// mutation must be found out.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace ngd::comm::model {

inline constexpr int kMaxRanks = 3;
inline constexpr int kSlots = 2;
inline constexpr int kBuffers = 2;
inline constexpr std::uint8_t kAll = 255;
inline constexpr std::uint8_t kAwake = 0, kUntilAny = 255;  // else the rank slept for, plus one

enum class Mutation {
  None,
  NoRecheck,          // falls asleep without a second look
  RecheckTooEarly,    // takes the second look before it says that it sleeps
  BellsBeforeFlag,    // no fence: looks for sleepers before its flag is there
  BellReadTooLate,    // remembers the doorbell after the second look
  CopiesOutTooEarly,  // takes results out of its buffer before all have reduced
  RewritesTooEarly,   // a direct collective is over before all have read
  IgnoresTheLane,     // fills a buffer that is still read
  TakesTooEarly,      // in place, takes a chunk to where its own still stands
  SlotsAnyTime,       // takes a slot that a peer may still read
  OnlyItsTarget,      // a blocking call advances nothing but what it waits for
  SleepsForTheWrong   // with several works, sleeps for one rank
};

// Direct: from when all are there until all have said that they are done, ranks read, or write,
// each other's blocks. Staged: an exchange, whose lane's readers say when they have read. InPlace:
// one that overwrites what it has sent. Pushed: a flat all-reduce, whose peers write their results
// back to the buffer that they have read.
enum class Kind : std::uint8_t { Inline, Direct, Staged, InPlace, Pushed };

struct Command {
  enum Op : std::uint8_t { Start, Wait, Send, Receive } op;
  std::uint8_t argument;  // the sequence; of a send or a receive, the peer
};

struct Scenario {
  int ranks = 2;
  Mutation mutation = Mutation::None;
  std::array<std::vector<Command>, kMaxRanks> scripts;
  std::vector<Kind> kinds;  // by sequence - 1
  int chunks = 1;           // of a staged one
};

// ---- state: bytes only, so that it can be hashed and compared as one string

struct Slot {
  std::uint8_t published, step, taken, payload, lane;
};

struct Task {
  std::uint8_t sequence;  // 0 = none
  std::uint8_t arrived, phase, next, filled, taken, producer, activity, lane, complete;
};

enum class Mode : std::uint8_t {
  Script,
  Pass,
  Ring,
  Wake,
  ReadBell,
  SaySleeping,
  Futex,
  Asleep,
  Rise,
  Done
};

struct Rank {
  // Shared.
  Slot slots[kSlots];
  std::uint8_t finished, block, buffers[kBuffers][kMaxRanks];
  std::uint8_t sleeping, bell;  // the doorbell: whether it was rung since its owner looked at it
  std::uint8_t posted[kMaxRanks], letters[kMaxRanks], received[kMaxRanks];  // to, to, from each
  // Its own.
  Mode mode, after;  // and where it goes when it has rung the bells
  std::uint8_t command, rewritten, work, moved, rechecking, rung, until;
  std::uint8_t flag, flag_value;  // raised after the bells, by the mutation that does so
  std::uint8_t submitted, tickets, waits_for_slot, slot_next;
  std::uint8_t guard_sequence[kBuffers], guard_value[kBuffers], guard_next[kBuffers];
  Task tasks[kSlots];
  std::uint8_t held[kBuffers];
  std::uint8_t sends, receives, transfer, transfer_phase;  // the peer plus one that it is about
};

struct State {
  Rank ranks[kMaxRanks];
};
static_assert(std::has_unique_object_representations_v<State>);

// ---- the machine

class Machine {
 public:
  explicit Machine(const Scenario& scenario) : scenario_(scenario) {}

  struct Fault {
    std::string what;
  };

  // The next step of a rank; false where it can do none.
  bool step(State& state, int me) const {
    const Mode mode = state.ranks[me].mode;
    if (mode == Mode::Done || mode == Mode::Asleep) return false;
    Stepper(scenario_, state, me).step();
    return true;
  }

 private:
  class Stepper {
   public:
    Stepper(const Scenario& scenario, State& state, int me)
        : scenario_(scenario), state_(state), me_(me), rank_(state.ranks[me]) {}

    // Goes on up to the next access to what is shared.
    void step() {
      do {
        act();
      } while (!shared_ && rank_.mode != Mode::Done);
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
          shared_ = true;
          rank_.bell = 0;
          rank_.mode = is(Mutation::RecheckTooEarly) ? begin_pass(1) : Mode::SaySleeping;
          return;
        case Mode::SaySleeping:
          shared_ = true;
          rank_.sleeping = rank_.until;
          if (is(Mutation::NoRecheck) || is(Mutation::RecheckTooEarly))
            rank_.mode = Mode::Futex;
          else
            rank_.mode = begin_pass(1);
          return;
        case Mode::Futex:
          shared_ = true;
          if (is(Mutation::BellReadTooLate)) rank_.bell = 0;
          rank_.mode = rank_.bell == 0 ? Mode::Asleep : Mode::Rise;
          return;
        case Mode::Rise:
          shared_ = true;
          rank_.sleeping = kAwake;
          rank_.bell = rank_.until = 0;
          rank_.mode = begin_pass(0);
          return;
        case Mode::Asleep:
        case Mode::Done:
          return;
      }
    }

    bool is(Mutation mutation) const { return scenario_.mutation == mutation; }
    // Any look at a peer, or at what a peer may look at.
    Rank& peer(int r) {
      shared_ = true;
      return state_.ranks[r];
    }
    Slot& slot(int r, int sequence) { return peer(r).slots[sequence % kSlots]; }
    Task& task(int sequence) { return rank_.tasks[sequence % kSlots]; }
    const Command& command() const { return scenario_.scripts[me_][rank_.command]; }
    Kind kind(int sequence) const { return scenario_.kinds[sequence - 1]; }
    bool uses_lane(int sequence) const { return kind(sequence) >= Kind::Staged; }
    bool is_exchange(int sequence) const {
      return kind(sequence) == Kind::Staged || kind(sequence) == Kind::InPlace;
    }
    static void expect(bool condition, const char* what) {
      if (!condition) throw Fault{what};
    }

    Mode begin_pass(int rechecking) {
      rank_.work = 0;
      rank_.moved = 0;
      rank_.rechecking = static_cast<std::uint8_t>(rechecking);
      return Mode::Pass;
    }

    // ---- raising a flag, and the bells

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
      shared_ = true;
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
      if (!rank_.rewritten) {  // my operand: in the shared lane, or beside the flag
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
      if (uses_lane(sequence)) {
        task(sequence).lane = rank_.tickets;
        mine.lane = rank_.tickets;  // early, but nobody looks before the first step
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
    void next_work() { ++rank_.work; }
    void moved() { rank_.moved = 1; }

    void end_pass() {
      const bool reached = target_reached();
      rank_.work = 0;
      if (rank_.rechecking) {
        const bool sleeps = !reached && !rank_.moved;
        rank_.moved = rank_.rechecking = 0;
        if (is(Mutation::RecheckTooEarly) && sleeps)
          rank_.mode = Mode::SaySleeping;
        else
          rank_.mode = sleeps ? Mode::Futex : Mode::Rise;
      } else if (reached) {
        rank_.moved = 0;
        if (!rank_.waits_for_slot) ++rank_.command;
        rank_.mode = Mode::Script;
      } else if (rank_.moved) {
        rank_.mode = begin_pass(0);
      } else {
        // Further looks without a change in between would see the same: it goes to sleep.
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
      const bool fills = uses_lane(only->sequence) && only->filled < scenario_.chunks;
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

    // ---- tasks

    void advance(Task& each) {
      const Kind its = kind(each.sequence);
      const bool exchanges = is_exchange(each.sequence);
      if (exchanges && each.activity == 0 && !each.complete) {
        if (fill(each)) return;
        each.activity = 1;
      }
      if (its == Kind::Pushed && each.filled == 0 && fill(each)) return;
      if (!each.arrived) return arrive(each);
      if (exchanges) return take(each);
      if (its == Kind::Pushed) return push(each);
      if (its == Kind::Inline) return read_payloads(each);
      return reduce_direct(each);
    }

    void stuck(Task& each) {
      each.activity = 0;
      next_work();
    }

    void arrive(Task& each) {
      if (each.next == me_) ++each.next;
      if (each.next >= scenario_.ranks) {
        each.arrived = 1;
        each.next = 0;
        each.activity = 0;
        return;
      }
      if (slot(each.next, each.sequence).published < each.sequence) return stuck(each);
      expect(slot(each.next, each.sequence).published == each.sequence,
             "a slot is used again before all have read it");
      ++each.next;
      moved();
    }

    void read_payloads(Task& each) {
      if (each.next == me_) ++each.next;
      if (each.next >= scenario_.ranks) return finish(each);
      expect(slot(each.next++, each.sequence).payload == each.sequence,
             "a payload is rewritten before all have read it");
    }

    void reduce_direct(Task& each) {
      if (each.next == me_) ++each.next;
      const bool last = each.next >= scenario_.ranks;
      if (each.phase == 0 && !last) {
        expect(peer(each.next++).block == each.sequence,
               "a shared block is rewritten before all have read it");
      } else if (each.phase == 0) {
        each.phase = 1;
        each.next = 0;
        raise(kStep, each.sequence % kSlots, 1, Mode::Pass);
      } else if (last || is(Mutation::RewritesTooEarly)) {
        finish(each);
      } else if (slot(each.next, each.sequence).step < 1) {
        stuck(each);
      } else {
        ++each.next;
        moved();
      }
    }

    int content(int sequence, int chunk) const { return sequence * 4 + chunk; }

    // True where it has made a step.
    bool fill(Task& each) {
      if (each.filled == scenario_.chunks) return false;
      const int ticket = each.lane + each.filled, buffer = ticket % kBuffers;
      const bool ignores = is(Mutation::IgnoresTheLane);
      if (rank_.held[buffer] && !ignores) return false;
      for (const Task& other : rank_.tasks)  // the lane is had in sequence
        if (other.sequence != 0 && other.sequence < each.sequence && !other.complete &&
            uses_lane(other.sequence) && other.filled < scenario_.chunks)
          return false;
      for (std::uint8_t& next = rank_.guard_next[buffer];
           !ignores && rank_.guard_sequence[buffer] != 0;) {
        if (next == me_) ++next;
        if (next >= scenario_.ranks) {
          rank_.guard_sequence[buffer] = rank_.guard_value[buffer] = next = 0;
          break;
        }
        const Slot& theirs = slot(next, rank_.guard_sequence[buffer]);
        const bool taken = theirs.published > rank_.guard_sequence[buffer] ||
                           (theirs.published == rank_.guard_sequence[buffer] &&
                            theirs.taken >= rank_.guard_value[buffer]);
        if (!taken) return false;
        ++next;
        moved();
        return true;
      }
      for (std::uint8_t& part : peer(me_).buffers[buffer])
        part = static_cast<std::uint8_t>(content(each.sequence, each.filled));
      ++each.filled;
      const bool pushed = kind(each.sequence) == Kind::Pushed;
      if (pushed) {
        rank_.held[buffer] = 1;
      } else {
        rank_.guard_sequence[buffer] = each.sequence;
        rank_.guard_value[buffer] = each.filled;
        rank_.guard_next[buffer] = 0;
      }
      moved();
      raise(kStep, each.sequence % kSlots, pushed ? in_mark(each.filled - 1) : each.filled,
            Mode::Pass);
      return true;
    }

    void take(Task& each) {
      if (each.taken == scenario_.chunks) {
        if (each.filled == scenario_.chunks) return finish(each);
        return stuck(each);
      }
      const bool overwrites = kind(each.sequence) == Kind::InPlace && each.filled <= each.taken;
      if (overwrites && !is(Mutation::TakesTooEarly)) return stuck(each);
      if (each.producer == me_) ++each.producer;
      if (each.producer >= scenario_.ranks) {
        each.producer = 0;
        each.activity = 0;
        ++each.taken;
        moved();
        const bool all = each.taken == scenario_.chunks;
        return raise(kTaken, each.sequence % kSlots, all ? kAll : each.taken, Mode::Pass);
      }
      const Slot& theirs = slot(each.producer, each.sequence);
      if (each.phase == 0) {
        if (theirs.step <= each.taken) return stuck(each);
        each.phase = 1;  // the data are there: now, in a step of its own, read them
        moved();
        return;
      }
      each.phase = 0;
      expect(!overwrites, "a block is overwritten before it is sent");
      expect(peer(each.producer).buffers[(theirs.lane + each.taken) % kBuffers][me_] ==
                 content(each.sequence, each.taken),
             "a buffer is filled again before all have read it");
      ++each.producer;
    }

    // As flat.cpp: in 0, in 1, reduce 0, out 0, in 2, ...; chunk `taken` is the one in hand.
    static int in_mark(int chunk) { return chunk == 0 ? 1 : 2 * chunk; }
    static int reduced_mark(int chunk) { return 2 * chunk + 3; }
    int result(int sequence, int chunk) const { return 100 + content(sequence, chunk); }

    void push(Task& each) {
      const int chunk = each.taken;
      if (each.phase == 0) {
        const bool ahead = each.filled < std::min(chunk + 2, scenario_.chunks);
        if (ahead && !fill(each)) return stuck(each);
        if (!ahead) each.phase = 1;
      } else if (each.phase == 1 || each.phase == 3) {
        await_steps(each, each.phase == 1 ? in_mark(chunk) : reduced_mark(chunk));
      } else if (each.phase == 2) {
        reduce_chunk(each, chunk);
      } else {
        const int buffer = (each.lane + chunk) % kBuffers;
        for (int part = 0; part < scenario_.ranks; ++part)
          expect(part == me_ || peer(me_).buffers[buffer][part] == result(each.sequence, chunk),
                 "a result is not there when it is taken out");
        rank_.held[buffer] = each.phase = each.next = 0;
        moved();
        if (++each.taken == scenario_.chunks) finish(each);
      }
    }

    void await_steps(Task& each, int mark) {
      if (each.next == me_) ++each.next;
      const bool hurries = each.phase == 3 && is(Mutation::CopiesOutTooEarly);
      if (each.next >= scenario_.ranks || hurries) {
        ++each.phase;
        each.next = 0;
      } else if (slot(each.next, each.sequence).step < mark) {
        stuck(each);
      } else {
        ++each.next;
        moved();
      }
    }

    // Reads my part in the buffers of all others, then writes the result there.
    void reduce_chunk(Task& each, int chunk) {
      const int other = each.next % scenario_.ranks;
      if (each.next >= 2 * scenario_.ranks) {
        each.phase = 3;
        each.next = 0;
        return raise(kStep, each.sequence % kSlots, reduced_mark(chunk), Mode::Pass);
      }
      const bool writes = each.next++ >= scenario_.ranks;
      if (other == me_) return;
      std::uint8_t& part =
          peer(other).buffers[(slot(other, each.sequence).lane + chunk) % kBuffers][me_];
      if (writes)
        part = static_cast<std::uint8_t>(result(each.sequence, chunk));
      else
        expect(part == content(each.sequence, chunk),
               "a buffer is filled again before all have read it");
    }

    void finish(Task& each) {
      const std::uint8_t sequence_done = each.sequence;
      each = Task{};
      each.sequence = sequence_done;
      each.complete = 1;
      moved();
      next_work();
      int finished = rank_.finished;
      for (int sequence = finished + 1; sequence <= rank_.submitted; ++sequence) {
        if (task(sequence).sequence != sequence || !task(sequence).complete) break;
        finished = sequence;
      }
      if (finished != rank_.finished) raise(kFinished, 0, finished, Mode::Pass);
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

    const Scenario& scenario_;
    State& state_;
    int me_;
    Rank& rank_;
    bool shared_ = false;
  };

  const Scenario& scenario_;
};

// ---- the search

struct Verdict {
  std::string fault;  // "" = none
  std::size_t states = 0;
};

// Of the states that it has seen it keeps 64 bits each: two of ten million are taken for one with a
// chance of 3e-6 (Wolper and Leroy, "Reliable hashing without collision detection", 1993).
class Seen {
 public:
  Seen() : places_(1 << 16) {}
  std::size_t size() const { return size_; }
  bool insert(const State& state) {
    if (2 * size_ > places_.size()) grow();
    const bool is_new = place(hash_of(state));
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
  bool place(std::uint64_t hash) {
    std::size_t at = hash >> 7 & (places_.size() - 1);
    for (; places_[at] != 0; at = (at + 1) & (places_.size() - 1))
      if (places_[at] == hash) return false;
    places_[at] = hash;
    return true;
  }
  void grow() {
    std::vector<std::uint64_t> old(2 * places_.size());
    old.swap(places_);
    for (const std::uint64_t hash : old)
      if (hash != 0) place(hash);
  }

  std::vector<std::uint64_t> places_;
  std::size_t size_ = 0;
};

inline Verdict search(const Scenario& scenario) {
  const Machine machine(scenario);
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
        bool anybody = false, all_done = true;
        for (int r = 0; r < scenario.ranks; ++r) {
          all_done = all_done && state.ranks[r].mode == Mode::Done;
          State after = state;
          if (!machine.step(after, r)) continue;
          anybody = true;
          if (seen.insert(after)) next.push_back(after);
        }
        if (!anybody && !all_done) throw Machine::Fault{"nobody can go on"};
      }
    }
  } catch (const Machine::Fault& fault) {
    return {fault.what, seen.size()};
  }
  return {"", seen.size()};
}

}  // namespace ngd::comm::model
