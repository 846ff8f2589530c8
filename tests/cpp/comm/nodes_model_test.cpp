// SPDX-License-Identifier: Apache-2.0
// A model of the all-reduce over memory nodes (src/cpp/comm/shm/nodes.cpp), and a search through
// all that can happen in it.
//
// Every rank has a program of reads, writes, raised flags and waits; memory is sequentially
// consistent. From the first state on, every state that any interleaving can reach is visited. No
// read may find anything but what it is for, and there must be no state in which nobody can go on.
// Each kind of wait can be left out, and each omission must be found out. How ranks sleep and wake,
// and how slots and lanes are shared between collectives, is in protocol_model.hpp.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace ngd::comm {
namespace {

enum class Act : std::uint8_t { None, Arrive, In, Sum, Combine, Spread };

struct Scenario {
  const char* name;
  int nodes, ranks;  // a node
  bool staged;
  int chunks, rounds;
  Act unwaited = Act::None;
};

enum class Content : std::uint8_t { Nothing, Source, Partial, Result };
constexpr int kContents = 4, kBuffers = 2;

struct Instruction {
  enum : std::uint8_t { Read, Write, Raise, Await } what;
  std::uint8_t value;      // a content, or how far a flag is
  std::uint16_t cell = 0;  // read or written
};

using Program = std::vector<Instruction>;

// What a rank does, act by act as nodes.cpp has it. A cell is a piece of a slice of a rank's
// buffer, or of its block in the shared lane where nothing is staged (in place: it holds the
// source, then partial sums, then results).
class Writer {
 public:
  Writer(const Scenario& scenario, int rank)
      : in_(scenario), rank_(rank), node_(rank / in_.ranks), place_(rank % in_.ranks) {}

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
      if (slice != place_) all_pieces(rank_, slice, Content::Source);
    raise(Act::In);
    chunk_ = at_hand;
  }

  void reduce_chunk() {
    if (in_.staged) {
      if (chunk_ + 1 < in_.chunks) copy_in(chunk_ + 1);
      await(Act::In);
    }
    for (int place = 0; place < in_.ranks; ++place)
      if (place != place_ || !in_.staged)
        for (int piece = 0; piece < in_.nodes; ++piece)
          read(node_ * in_.ranks + place, place_, piece, Content::Source);
    all_pieces(rank_, place_, Content::Partial);
    raise(Act::Sum);
    await(Act::Sum);
    for (int node = 0; node < in_.nodes; ++node)
      read(node * in_.ranks + place_, place_, node_, Content::Partial);
    store_result(node_, true);
    raise(Act::Combine);
    await(Act::Combine);
    for (int distance = 1; distance < in_.nodes; ++distance) {
      const int node = (node_ + distance) % in_.nodes;
      read(node * in_.ranks + place_, place_, node, Content::Result);
      store_result(node, !in_.staged);
    }
    raise(Act::Spread);
    await(Act::Spread);
    for (int slice = 0; slice < in_.ranks; ++slice)
      if (slice != place_ || !in_.staged)
        for (int piece = 0; piece < in_.nodes; ++piece) read(rank_, slice, piece, Content::Result);
  }

  void store_result(int piece, bool mine) {
    for (int place = 0; place < in_.ranks; ++place)
      if (place != place_ || mine) store(node_ * in_.ranks + place, place_, piece, Content::Result);
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
  // Rises from act to act: arrive, in 0, in 1, sum 0, combine 0, spread 0, in 2, ...
  std::uint8_t mark(Act act) const {
    const int in_round = act == Act::Arrive ? 0
                         : act == Act::In   ? (chunk_ == 0 ? 1 : 4 * chunk_ - 2)
                                            : 4 * chunk_ + static_cast<int>(act);
    return static_cast<std::uint8_t>(1 + round_ * (4 * in_.chunks + 2) + in_round);
  }

  const Scenario in_;
  int rank_, node_, place_;
  int round_ = 0, chunk_ = 0;
  Program program_;
};

struct Verdict {
  std::string fault;  // "" = none
  std::size_t states = 0;
};

// A state is a string: where each rank is, its flag, and all cells.
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
      bool anybody = false, all_done = true;
      for (std::size_t r = 0; r < ranks_; ++r) {
        if (at(state, r) == programs_[r].size()) continue;
        all_done = false;
        std::string after = state;
        if (!step(after, r)) continue;
        if (!fault_.empty()) return {fault_, seen_.size()};
        anybody = true;
        if (seen_.insert(after).second) frontier.push_back(std::move(after));
      }
      if (!anybody && !all_done) return {"nobody can go on", seen_.size()};
    }
    return {"", seen_.size()};
  }

 private:
  static std::size_t at(const std::string& state, std::size_t index) {
    return static_cast<std::uint8_t>(state[index]);
  }

  // False where the rank must wait.
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
      if (scenario.staged ? act == Act::Arrive : act == Act::In) continue;  // it needs the other
      scenario.unwaited = act;
      EXPECT_NE(Search(scenario).run().fault, "")
          << scenario.name << " without wait " << static_cast<int>(act);
    }
}

}  // namespace
}  // namespace ngd::comm
