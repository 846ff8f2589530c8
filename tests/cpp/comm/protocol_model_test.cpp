// SPDX-License-Identifier: Apache-2.0
// Search all that two and three ranks can do (protocol_model.hpp), with all rules of the protocol,
// and with each rule left out once.
#include "comm/protocol_model.hpp"

#include <gtest/gtest.h>

#include <cstdio>

namespace ngd::comm::model {
namespace {

// ---- the scripts of the ranks

// Every rank starts and waits, in each round.
Scenario rounds(int ranks, std::vector<Kind> kinds, int chunks = 1) {
  Scenario scenario;
  scenario.ranks = ranks;
  scenario.chunks = chunks;
  for (int r = 0; r < ranks; ++r)
    for (std::uint8_t s = 1; s <= kinds.size(); ++s) {
      scenario.scripts[static_cast<std::size_t>(r)].push_back({Command::Start, s});
      scenario.scripts[static_cast<std::size_t>(r)].push_back({Command::Wait, s});
    }
  scenario.kinds = std::move(kinds);
  return scenario;
}

// Two collectives at a time. Rank 0 waits for them in another order.
Scenario overlapping(int ranks, std::vector<Kind> kinds, int chunks = 1) {
  Scenario scenario;
  scenario.ranks = ranks;
  scenario.chunks = chunks;
  for (int r = 0; r < ranks; ++r) {
    auto& script = scenario.scripts[static_cast<std::size_t>(r)];
    script = {{Command::Start, 1}, {Command::Start, 2}};
    if (r == 0)
      script.insert(script.end(), {{Command::Wait, 2}, {Command::Wait, 1}});
    else
      script.insert(script.end(), {{Command::Wait, 1}, {Command::Wait, 2}});
    script.insert(script.end(), {{Command::Start, 3}, {Command::Wait, 3}});
  }
  scenario.kinds = std::move(kinds);
  return scenario;
}

// In each of three rounds, rank 0 starts, receives, and then waits; rank 1 starts, waits, and then
// sends. Rank 2, if there is one, only takes part.
Scenario start_receive_and_wait_send(int ranks, Kind kind, int chunks) {
  Scenario scenario = rounds(ranks, {kind, kind, kind}, chunks);
  scenario.scripts[0].clear();
  scenario.scripts[1].clear();
  for (std::uint8_t s = 1; s <= 3; ++s) {
    auto& zero = scenario.scripts[0];
    zero.insert(zero.end(), {{Command::Start, s}, {Command::Receive, 1}, {Command::Wait, s}});
    auto& one = scenario.scripts[1];
    one.insert(one.end(), {{Command::Start, s}, {Command::Wait, s}, {Command::Send, 0}});
  }
  return scenario;
}

// Rank 2 starts each collective after a letter of rank 0, which waits for a letter of rank 1.
Scenario relay(Kind kind) {
  Scenario scenario;
  scenario.ranks = 3;
  scenario.kinds = {kind, kind, kind};
  for (std::uint8_t s = 1; s <= 3; ++s) {
    const Command start{Command::Start, s}, wait{Command::Wait, s};
    const std::vector<Command> rounds[] = {{start, {Command::Receive, 1}, {Command::Send, 2}, wait},
                                           {start, {Command::Send, 0}, wait},
                                           {{Command::Receive, 0}, start, wait}};
    for (std::size_t r = 0; r < 3; ++r)
      scenario.scripts[r].insert(scenario.scripts[r].end(), rounds[r].begin(), rounds[r].end());
  }
  return scenario;
}

constexpr Kind kInline = Kind::Inline, kDirect = Kind::Direct, kStaged = Kind::Staged,
               kInPlace = Kind::InPlace, kPushed = Kind::Pushed;

struct Case {
  const char* name;
  Scenario scenario;
};

std::vector<Case> cases() {
  return {
      {"inline2", rounds(2, {kInline, kInline, kInline})},
      {"direct2", rounds(2, {kDirect, kDirect, kDirect})},
      {"staged2", rounds(2, {kStaged, kStaged, kStaged})},
      {"staged2 of 2 chunks", rounds(2, {kStaged, kStaged, kStaged}, 2)},
      {"in place2 of 3 chunks", rounds(2, {kInPlace, kInPlace}, 3)},
      {"in place2, mixed", overlapping(2, {kInPlace, kStaged, kInPlace}, 2)},
      {"mixed2", rounds(2, {kStaged, kInline, kDirect, kStaged}, 2)},
      {"overlapping2", overlapping(2, {kStaged, kDirect, kStaged}, 2)},
      {"transfers2", start_receive_and_wait_send(2, kStaged, 2)},
      {"direct transfers2", start_receive_and_wait_send(2, kDirect, 1)},
      {"pushed2", rounds(2, {kPushed, kPushed, kPushed}, 2)},
      {"pushed2 of 3 chunks", rounds(2, {kPushed, kPushed}, 3)},
      {"overlapping pushed2", overlapping(2, {kPushed, kStaged, kPushed}, 1)},
      {"inline3", rounds(3, {kInline, kInline, kInline})},
      {"direct3", rounds(3, {kDirect, kDirect, kDirect})},
      {"pushed3", rounds(3, {kPushed, kPushed, kPushed})},
      {"staged3", rounds(3, {kStaged, kStaged, kStaged})},
      {"in place3", rounds(3, {kInPlace, kInPlace, kStaged})},
      {"transfers3", start_receive_and_wait_send(3, kDirect, 1)},
      {"relay3", relay(kInline)},
  };
}

constexpr Mutation kMutations[] = {
    Mutation::NoRecheck,         Mutation::RecheckTooEarly,  Mutation::BellsBeforeFlag,
    Mutation::BellReadTooLate,   Mutation::RewritesTooEarly, Mutation::IgnoresTheGuards,
    Mutation::CopiesOutTooEarly, Mutation::SlotsAnyTime,     Mutation::OnlyItsTarget,
    Mutation::SleepsForTheWrong, Mutation::TakesTooEarly};

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kSlow = true;
#else
constexpr bool kSlow = false;
#endif

TEST(Protocol, EveryRuleIsNeeded) {
  for (const Mutation mutation : kMutations) {
    const bool takes_three = mutation == Mutation::SleepsForTheWrong;
    std::string fault;
    for (const Case& each : cases()) {
      if (takes_three ? each.name != std::string("relay3") : each.scenario.ranks > 2) continue;
      Scenario scenario = each.scenario;
      scenario.mutation = mutation;
      fault = search(scenario).fault;
      if (!fault.empty()) break;
    }
    EXPECT_NE(fault, "") << "mutation " << static_cast<int>(mutation) << " was not found out";
  }
}

TEST(Protocol, NothingIsLostNorReadTooLateNorWaitedForInACycle) {
  for (const Case& each : cases()) {
    if (kSlow && each.scenario.ranks > 2) continue;
    const Verdict verdict = search(each.scenario);
    EXPECT_EQ(verdict.fault, "") << each.name;
    std::printf("%-22s %9zu states\n", each.name, verdict.states);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace ngd::comm::model
