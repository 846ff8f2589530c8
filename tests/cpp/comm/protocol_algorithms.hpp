// SPDX-License-Identifier: Apache-2.0
// How a rank of the model advances a collective, in the order of accesses of the engine's algorithms.
#pragma once

#include <algorithm>

#include "comm/protocol_flags.hpp"
#include "comm/shm/schedule.hpp"

namespace ngd::comm::model {

class Algorithms : public Access {
 public:
  using Access::Access;

 protected:
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

  void arrive(Task& each) {
    if (each.next == me_) ++each.next;
    if (each.next >= scenario_.ranks) {
      each.arrived = 1;
      each.next = 0;
      each.activity = 0;
      return;
    }
    if (slot(each.next, each.sequence).published < each.sequence) return end_of_work(each);
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
      end_of_work(each);
    } else {
      ++each.next;
      moved();
    }
  }

  int content(int sequence, int chunk) const { return sequence * 4 + chunk; }

  // One look at one peer: has it taken what the buffer held?
  enum class Guard { Met, Moved, Waits };
  Guard look_at_guard(int buffer) {
    std::uint8_t& next = rank_.guard_next[buffer];
    if (next == me_) ++next;
    if (next >= scenario_.ranks) {
      rank_.guard_sequence[buffer] = rank_.guard_value[buffer] = next = 0;
      return Guard::Met;
    }
    const Slot& theirs = slot(next, rank_.guard_sequence[buffer]);
    const bool taken = theirs.published > rank_.guard_sequence[buffer] ||
                       (theirs.published == rank_.guard_sequence[buffer] &&
                        theirs.taken >= rank_.guard_value[buffer]);
    if (!taken) return Guard::Waits;
    ++next;
    moved();
    return Guard::Moved;
  }

  // Return true if the rank has made a step.
  bool fill(Task& each) {
    if (each.filled == scenario_.chunks) return false;
    const int ticket = each.first_ticket + each.filled, buffer = ticket % kBuffers;
    const bool ignores = is(Mutation::IgnoresTheGuards);
    if (rank_.held[buffer] && !ignores) return false;
    for (const Task& other : rank_.tasks)  // the buffers are taken in sequence
      if (other.sequence != 0 && other.sequence < each.sequence && !other.complete &&
          is_staged(other.sequence) && other.filled < scenario_.chunks)
        return false;
    if (!ignores && rank_.guard_sequence[buffer] != 0) {
      const Guard guard = look_at_guard(buffer);
      if (guard != Guard::Met) return guard == Guard::Moved;
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
    raise(kStep, each.sequence % kSlots,
          pushed ? step_of(shm::Act::CopyIn, each.filled - 1) : each.filled, Mode::Pass);
    return true;
  }

  void take(Task& each) {
    if (each.taken == scenario_.chunks) {
      if (each.filled == scenario_.chunks) return finish(each);
      return end_of_work(each);
    }
    const bool overwrites = kind(each.sequence) == Kind::InPlace && each.filled <= each.taken;
    if (overwrites && !is(Mutation::TakesTooEarly)) return end_of_work(each);
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
      if (theirs.step <= each.taken) return end_of_work(each);
      each.phase = 1;  // to read the data is a step of its own
      moved();
      return;
    }
    each.phase = 0;
    expect(!overwrites, "a block is overwritten before it is sent");
    expect(peer(each.producer).buffers[(theirs.first_ticket + each.taken) % kBuffers][me_] ==
               content(each.sequence, each.taken),
           "a buffer is filled again before all have read it");
    ++each.producer;
  }

  // The schedule of flat.cpp. Chunk `taken` is the one that the rank works on.
  int step_of(shm::Act act, int chunk) const {
    const shm::Schedule schedule(shm::kFlatStaged, static_cast<std::uint64_t>(scenario_.chunks));
    return static_cast<int>(schedule.number_of(act, static_cast<std::uint64_t>(chunk)));
  }
  int result(int sequence, int chunk) const { return 100 + content(sequence, chunk); }

  void push(Task& each) {
    const int chunk = each.taken;
    if (each.phase == 0) {
      const bool ahead = each.filled < std::min(chunk + 2, scenario_.chunks);
      if (ahead && !fill(each)) return end_of_work(each);
      if (!ahead) each.phase = 1;
    } else if (each.phase == 1 || each.phase == 3) {
      await_steps(each, each.phase == 1 ? step_of(shm::Act::CopyIn, chunk)
                                        : step_of(shm::Act::Reduce, chunk));
    } else if (each.phase == 2) {
      reduce_chunk(each, chunk);
    } else {
      const int buffer = (each.first_ticket + chunk) % kBuffers;
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
      end_of_work(each);
    } else {
      ++each.next;
      moved();
    }
  }

  // Read my part in the peers' buffers, then write the result there.
  void reduce_chunk(Task& each, int chunk) {
    const int other = each.next % scenario_.ranks;
    if (each.next >= 2 * scenario_.ranks) {
      each.phase = 3;
      each.next = 0;
      return raise(kStep, each.sequence % kSlots, step_of(shm::Act::Reduce, chunk), Mode::Pass);
    }
    const bool writes = each.next++ >= scenario_.ranks;
    if (other == me_) return;
    std::uint8_t& part =
        peer(other).buffers[(slot(other, each.sequence).first_ticket + chunk) % kBuffers][me_];
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
};

}  // namespace ngd::comm::model
