// SPDX-License-Identifier: Apache-2.0
// A model of the all_reduce over NUMA nodes (src/cpp/comm/shm/nodes.cpp), and a search through all
// that can happen in it.
//
// Every rank has a program of reads, writes, raised flags and waits. Memory is sequentially
// consistent. From the first state on, the search visits every state that any interleaving can
// reach. A read must find the content that it is for, and there must be no state in which no rank
// can continue. A scenario can leave out each kind of wait, and the search must detect each
// omission. protocol_model.hpp models how ranks sleep and wake, and how collectives share slots and
// staging buffers.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "comm/shm/schedule.hpp"

namespace ngd::comm {
namespace {

enum class Act : std::uint8_t { None, Arrive, In, Sum, Combine, Spread };

struct Scenario {
  const char* name;
  int nodes, ranks;  // per node
  bool staged;
  int chunks, rounds;
  Act unwaited = Act::None;
};

enum class Content : std::uint8_t { Nothing, Source, Partial, Result };
constexpr int kContents = 4, kBuffers = 2;

struct Instruction {
  enum : std::uint8_t { Read, Write, Raise, Await } what;
  std::uint8_t value;      // a content, or the value of a flag
  std::uint16_t cell = 0;  // the cell that is read or written
};

using Program = std::vector<Instruction>;

// Writes the program of a rank, in the order of acts of nodes.cpp. A cell is a part of a slice of a
// rank's staging buffer, or of its block in the shared arena if nothing is staged (in place: it
// contains the source, then partial sums, then results).
class Writer {
 public:
  Writer(const Scenario& scenario, int rank)
      : in_(scenario), rank_(rank), node_(rank / in_.ranks), index_(rank % in_.ranks) {}

  Program write() {
    for (int round = 0; round < in_.rounds; ++round) {
      round_ = round;
      if (!in_.staged)
        for (int slice = 0; slice < in_.ranks; ++slice) all_pieces(rank_, slice, Content::Source);
      raise(Act::Arrive);
      if (in_.staged) copy_in(0);
      await(Act::Arrive);
      for (chunk_ = 0; chunk_ < in_.chunks; ++chunk_) reduce_chunk();
      chunk_ = 0;
    }
    return std::move(program_);
  }

 private:
  void copy_in(int chunk) {
    const int at_hand = std::exchange(chunk_, chunk);
    for (int slice = 0; slice < in_.ranks; ++slice)
      if (slice != index_) all_pieces(rank_, slice, Content::Source);
    raise(Act::In);
    chunk_ = at_hand;
  }

  void reduce_chunk() {
    if (in_.staged) {
      if (chunk_ + 1 < in_.chunks) copy_in(chunk_ + 1);
      await(Act::In);
    }
    for (int index = 0; index < in_.ranks; ++index)
      if (index != index_ || !in_.staged)
        for (int piece = 0; piece < in_.nodes; ++piece)
          read(node_ * in_.ranks + index, index_, piece, Content::Source);
    all_pieces(rank_, index_, Content::Partial);
    raise(Act::Sum);
    await(Act::Sum);
    for (int node = 0; node < in_.nodes; ++node)
      read(node * in_.ranks + index_, index_, node_, Content::Partial);
    store_result(node_, true);
    raise(Act::Combine);
    await(Act::Combine);
    for (int distance = 1; distance < in_.nodes; ++distance) {
      const int node = (node_ + distance) % in_.nodes;
      read(node * in_.ranks + index_, index_, node, Content::Result);
      store_result(node, !in_.staged);
    }
    raise(Act::Spread);
    await(Act::Spread);
    for (int slice = 0; slice < in_.ranks; ++slice)
      if (slice != index_ || !in_.staged)
        for (int piece = 0; piece < in_.nodes; ++piece) read(rank_, slice, piece, Content::Result);
  }

  void store_result(int piece, bool mine) {
    for (int index = 0; index < in_.ranks; ++index)
      if (index != index_ || mine) store(node_ * in_.ranks + index, index_, piece, Content::Result);
  }
  void all_pieces(int rank, int slice, Content content) {
    for (int piece = 0; piece < in_.nodes; ++piece) store(rank, slice, piece, content);
  }

  void read(int rank, int slice, int piece, Content content) {
    program_.push_back({Instruction::Read, value(content), cell(rank, slice, piece)});
  }
  void store(int rank, int slice, int piece, Content content) {
    program_.push_back({Instruction::Write, value(content), cell(rank, slice, piece)});
  }
  void raise(Act act) { program_.push_back({Instruction::Raise, mark(act)}); }
  void await(Act act) {
    if (act != in_.unwaited) program_.push_back({Instruction::Await, mark(act)});
  }

  int ticket() const { return round_ * in_.chunks + chunk_; }
  std::uint8_t value(Content content) const {
    return static_cast<std::uint8_t>(ticket() * kContents + static_cast<int>(content));
  }
  std::uint16_t cell(int rank, int slice, int piece) const {
    const int buffer = rank * kBuffers + (in_.staged ? ticket() % kBuffers : 0);
    return static_cast<std::uint16_t>((buffer * in_.ranks + slice) * in_.nodes + piece);
  }
  // The value of a rank's flag after an act: the number of the step, over all rounds.
  std::uint8_t mark(Act act) const {
    const auto chunks = static_cast<std::uint64_t>(in_.chunks);
    const shm::Schedule schedule = in_.staged ? shm::Schedule(shm::kNodesStaged, chunks)
                                              : shm::Schedule(shm::kNodesDirect, chunks);
    const std::uint64_t step =
        act == Act::Arrive ? 0
                           : schedule.number_of(step_act(act), static_cast<std::uint64_t>(chunk_));
    return static_cast<std::uint8_t>(
        1 + static_cast<std::uint64_t>(round_) * (schedule.last() + 1) + step);
  }
  static shm::Act step_act(Act act) {
    return act == Act::In        ? shm::Act::CopyIn
           : act == Act::Sum     ? shm::Act::Sum
           : act == Act::Combine ? shm::Act::Combine
                                 : shm::Act::Spread;
  }

  const Scenario in_;
  int rank_, node_, index_;
  int round_ = 0, chunk_ = 0;
  Program program_;
};

struct Verdict {
  std::string fault;  // empty if there is no fault
  std::size_t states = 0;
};

// A state is a string: the next instruction and the flag of each rank, and all cells.
class Search {
 public:
  explicit Search(const Scenario& scenario)
      : ranks_(static_cast<std::size_t>(scenario.nodes * scenario.ranks)) {
    for (std::size_t r = 0; r < ranks_; ++r)
      programs_.push_back(Writer(scenario, static_cast<int>(r)).write());
    first_.assign(2 * ranks_ + ranks_ * kBuffers * ranks_, '\0');
  }

  Verdict run() {
    std::vector<std::string> frontier{first_};
    seen_.insert(first_);
    while (!frontier.empty()) {
      const std::string state = std::move(frontier.back());
      frontier.pop_back();
      bool any_moves = false, all_done = true;
      for (std::size_t r = 0; r < ranks_; ++r) {
        if (at(state, r) == programs_[r].size()) continue;
        all_done = false;
        std::string after = state;
        if (!step(after, r)) continue;
        if (!fault_.empty()) return {fault_, seen_.size()};
        any_moves = true;
        if (seen_.insert(after).second) frontier.push_back(std::move(after));
      }
      if (!any_moves && !all_done) return {"no rank can continue", seen_.size()};
    }
    return {"", seen_.size()};
  }

 private:
  static std::size_t at(const std::string& state, std::size_t index) {
    return static_cast<std::uint8_t>(state[index]);
  }

  // Return false if the rank must wait.
  bool step(std::string& state, std::size_t rank) {
    const Instruction& each = programs_[rank][at(state, rank)];
    const std::size_t cells = 2 * ranks_;
    switch (each.what) {
      case Instruction::Await:
        for (std::size_t r = 0; r < ranks_; ++r)
          if (at(state, ranks_ + r) < each.value) return false;
        break;
      case Instruction::Raise:
        state[ranks_ + rank] = static_cast<char>(each.value);
        break;
      case Instruction::Write:
        state[cells + each.cell] = static_cast<char>(each.value);
        break;
      case Instruction::Read:
        if (at(state, cells + each.cell) != each.value)
          fault_ = "rank " + std::to_string(rank) + " reads " +
                   std::to_string(at(state, cells + each.cell)) + ", not " +
                   std::to_string(each.value) + ", in step " + std::to_string(at(state, rank));
        break;
    }
    ++state[rank];
    return true;
  }

  std::size_t ranks_;
  std::vector<Program> programs_;
  std::string first_;
  std::unordered_set<std::string> seen_;
  std::string fault_;
};

constexpr Scenario kDirect{"direct 2x2", 2, 2, false, 1, 2};
constexpr Scenario kStaged{"staged 2x2 of 3 chunks", 2, 2, true, 3, 1};
constexpr Scenario kTwice{"staged 2x2 twice", 2, 2, true, 1, 2};

TEST(NodesModel, NothingIsReadTooEarlyOrTooLate) {
  for (const Scenario& scenario : {kDirect, kStaged, kTwice}) {
    const Verdict verdict = Search(scenario).run();
    EXPECT_EQ(verdict.fault, "") << scenario.name;
    std::printf("%-24s %9zu states\n", scenario.name, verdict.states);
    std::fflush(stdout);
  }
}

TEST(NodesModel, EveryWaitIsNeeded) {
  for (const Act act : {Act::Arrive, Act::In, Act::Sum, Act::Combine, Act::Spread})
    for (Scenario scenario : {kDirect, kStaged}) {
      // The other wait is needed.
      if (scenario.staged ? act == Act::Arrive : act == Act::In) continue;
      scenario.unwaited = act;
      EXPECT_NE(Search(scenario).run().fault, "")
          << scenario.name << " without wait " << static_cast<int>(act);
    }
}

}  // namespace
}  // namespace ngd::comm
