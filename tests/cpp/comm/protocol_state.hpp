// SPDX-License-Identifier: Apache-2.0
// The state of the model of the shared memory protocol (protocol_model.hpp): what ranks do, and what
// they share.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace ngd::comm::model {

inline constexpr int kMaxRanks = 3;
inline constexpr int kSlots = 2;
inline constexpr int kBuffers = 2;
inline constexpr std::uint8_t kAll = 255;
// Otherwise the rank that the sleeper waits for, plus one.
inline constexpr std::uint8_t kAwake = 0, kUntilAny = 255;

// A rule of the protocol that is left out.
enum class Mutation {
  None,
  NoRecheck,          // sleeps without a second look
  RecheckTooEarly,    // takes the second look before it stores that it sleeps
  BellsBeforeFlag,    // no fence: looks for sleepers before its flag is stored
  BellReadTooLate,    // reads the doorbell after the second look
  CopiesOutTooEarly,  // takes results out of its buffer before all have reduced
  RewritesTooEarly,   // completes a direct collective before all have read
  IgnoresTheGuards,   // fills a buffer that a peer still reads
  TakesTooEarly,      // in place, overwrites a chunk of its own that is not sent
  SlotsAnyTime,       // takes a slot that a peer may still read
  OnlyItsTarget,      // a blocking call advances only what it waits for
  SleepsForTheWrong   // with several works, sleeps for one rank
};

// Direct: ranks read each other's blocks after all have arrived, until all have reported that they are
// done. Staged: an exchange; the readers of a staging buffer report what they have taken. InPlace: an
// exchange that overwrites what it has sent. Pushed: a staged flat all-reduce; the peers write their
// results to the buffer that they have read.
enum class Kind : std::uint8_t { Inline, Direct, Staged, InPlace, Pushed };

struct Command {
  enum Op : std::uint8_t { Start, Wait, Send, Receive } op;
  std::uint8_t argument;  // the sequence, or the peer of a send or a receive
};

struct Scenario {
  int ranks = 2;
  Mutation mutation = Mutation::None;
  std::array<std::vector<Command>, kMaxRanks> scripts;
  std::vector<Kind> kinds;  // by sequence - 1
  int chunks = 1;           // of a staged collective
};

// ---- the state: bytes only, so that it can be hashed and compared as one string

struct Slot {
  std::uint8_t published, step, taken, payload, first_ticket;
};

struct Task {
  std::uint8_t sequence;  // 0 = none
  std::uint8_t arrived, phase, next, filled, taken, producer, activity, first_ticket, complete;
};

enum class Mode : std::uint8_t {
  Script,
  Pass,
  Ring,
  Wake,
  ReadBell,
  StoreSleeping,
  Futex,
  Asleep,
  Rise,
  Done
};

struct Rank {
  // Shared.
  Slot slots[kSlots];
  std::uint8_t finished, block, buffers[kBuffers][kMaxRanks];
  std::uint8_t sleeping, bell;  // bell: 1 if it was rung since its owner read it
  std::uint8_t posted[kMaxRanks], letters[kMaxRanks], received[kMaxRanks];  // to, to, from each
  // Private.
  Mode mode, after;  // after: the mode after ringing the bells
  std::uint8_t command, rewritten, work, moved, rechecking, rung, until;
  std::uint8_t flag, flag_value;  // stored after the bells, by one mutation
  std::uint8_t submitted, tickets, waits_for_slot, slot_next;
  std::uint8_t guard_sequence[kBuffers], guard_value[kBuffers], guard_next[kBuffers];
  Task tasks[kSlots];
  std::uint8_t held[kBuffers];
  std::uint8_t sends, receives, transfer, transfer_phase;  // transfer: the peer plus one
};

struct State {
  Rank ranks[kMaxRanks];
};
static_assert(std::has_unique_object_representations_v<State>);

struct Fault {
  std::string what;
};

}  // namespace ngd::comm::model
