// SPDX-License-Identifier: Apache-2.0
// Sends and receives: one sequence per pair of ranks and direction.
//
// The sender's header goes ahead, with its data if they are small: such a send is complete at once.
// Longer data follow on the tag of pairs, one send at a time. The receiver compares the headers.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/collective.hpp"
#include "comm/mpi/mailbox.hpp"
#include "comm/mpi/transfer.hpp"
#include "comm/stats.hpp"

namespace ngd::comm::mpi {

class Pairs {
 public:
  // Sequence numbers of sends and receives, above all of collectives.
  static constexpr std::uint64_t kFirst = std::uint64_t{1} << 63;

  Pairs(const RankSet& group, Statistics& statistics);

  std::uint64_t submit(Mailbox& mailbox, const Collective& collective);
  // Throws CollectiveMismatch, Unreachable, and what check(peer, call, matched, start) throws for a
  // work in flight.
  template <class Check>
  void progress(Mailbox& mailbox, Check&& check);

  std::uint64_t last() const noexcept { return last_; }
  bool complete(std::uint64_t number) const noexcept;
  bool idle() const noexcept { return pending_ == 0; }
  std::uint64_t moves() const noexcept { return moves_; }
  // These are about a work that is not complete.
  const CallRecord& call(std::uint64_t number) const { return find(number)->header.call; }
  int peer_of(std::uint64_t number) const;  // world rank
  Statistics::Entry stats_of(std::uint64_t number) const { return find(number)->stats; }
  // Give up all messages. Works that are not complete stay so.
  void abandon() noexcept;

 private:
  struct Pair {
    std::uint64_t number;
    Collective collective;
    Header header;
    Statistics::Entry stats;
    std::chrono::steady_clock::time_point start;
    bool matched = false;  // a receive has seen the header of its sender
    std::optional<LongMessage> message;
  };
  using Line = std::deque<Pair>;  // of one peer and direction; the first one moves

  const Pair* find(std::uint64_t number) const;
  bool advance(Mailbox& mailbox, int peer, Pair& oldest);
  bool match(Mailbox& mailbox, int peer, Pair& receive);

  void count(const Pair& pair);

  const RankSet& group_;
  Statistics& statistics_;
  std::vector<Line> sends_;
  std::vector<Line> receives_;
  std::uint64_t last_ = kFirst - 1;
  std::uint64_t moves_ = 0;
  std::size_t pending_ = 0;
};

template <class Check>
void Pairs::progress(Mailbox& mailbox, Check&& check) {
  if (idle()) return;
  for (int peer = 0; peer < group_.size(); ++peer)
    for (std::vector<Line>* lines : {&sends_, &receives_}) {
      Line& line = (*lines)[static_cast<std::size_t>(peer)];
      while (!line.empty() && advance(mailbox, peer, line.front())) {
        count(line.front());
        line.pop_front();
        --pending_;
        ++moves_;
      }
      if (line.empty()) continue;
      const Pair& oldest = line.front();
      check(peer, oldest.header.call, oldest.matched, oldest.start);
    }
}

}  // namespace ngd::comm::mpi
