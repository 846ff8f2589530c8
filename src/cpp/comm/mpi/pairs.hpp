// SPDX-License-Identifier: Apache-2.0
// Sends and receives. The n-th send from rank a to rank b matches the n-th receive of b from a.
//
// The sender posts a header. Small data travel with the header, and the send is complete at once.
// Larger data follow with the tag kPairTag, for one send from a to b at a time. The receiver
// compares the header with its own receive.
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
  // The first sequence number of sends and receives, above the numbers of all collectives.
  static constexpr std::uint64_t kFirst = std::uint64_t{1} << 63;

  Pairs(const RankSet& group, Statistics& statistics);

  // Submit a send or a receive, and return its sequence number. A small send is complete at once.
  std::uint64_t submit(Mailbox& mailbox, const Collective& collective);
  // Advance all sends and receives. Then call check(peer, call, is_matched, start) for the oldest
  // pending send to each peer, and for the oldest pending receive from each peer. check() must
  // throw if a failed rank makes this send or receive fail. `call` is the record of the send or
  // receive, and `start` the time of its submission. `is_matched` is true for a receive if the
  // header of the sender has arrived, and false for a send. Errors of check() are thrown to the
  // caller of progress(), and so are CollectiveMismatch and Unreachable.
  template <class Check>
  void progress(Mailbox& mailbox, Check&& check);

  // Return the number that the last submit() has returned; kFirst - 1 before the first one.
  std::uint64_t last() const noexcept { return last_; }
  // Return true if the submitted send or receive `number` is complete.
  bool complete(std::uint64_t number) const noexcept;
  // Return true if no send or receive is pending.
  bool idle() const noexcept { return pending_ == 0; }
  // Return a number that grows when progress() completes a send or a receive, or moves its data.
  std::uint64_t moves() const noexcept { return moves_; }
  // call(), peer_of() and stats_of() take the number that submit() has returned for a send or a
  // receive that is not complete. stats_of() returns the entry of the statistics to which the send
  // or receive is added when it is complete.
  const CallRecord& call(std::uint64_t number) const { return find(number)->header.call; }
  int peer_of(std::uint64_t number) const;  // the world rank of the peer
  Statistics::Entry stats_of(std::uint64_t number) const { return find(number)->stats; }
  // Give up all messages of MPI. The pending sends and receives never complete.
  void abandon() noexcept;

 private:
  struct Pair {
    std::uint64_t number;
    Collective collective;
    Header header;
    Statistics::Entry stats;
    std::chrono::steady_clock::time_point start;
    bool is_matched = false;  // true for a receive if the sender's header has arrived
    std::optional<LongMessage> message;
  };
  // The pending sends to one peer, or the pending receives from it, oldest first. Only the data of
  // the oldest one are being transferred.
  using Queue = std::deque<Pair>;

  // Return the pending send or receive with this number, or null.
  const Pair* find(std::uint64_t number) const;
  // Advance `oldest`, the oldest pending send to `peer` or receive from `peer`. Return true if it
  // is complete.
  bool advance(Mailbox& mailbox, int peer, Pair& oldest);
  // Take the next header of `peer`, compare it with `receive`, and store data that came with it.
  // Return false if no header has arrived.
  bool match(Mailbox& mailbox, int peer, Pair& receive);

  // Add a complete send or receive to the statistics.
  void count(const Pair& pair);

  const RankSet& group_;
  Statistics& statistics_;
  std::vector<Queue> sends_;
  std::vector<Queue> receives_;
  std::uint64_t last_ = kFirst - 1;
  std::uint64_t moves_ = 0;
  std::size_t pending_ = 0;
};

template <class Check>
void Pairs::progress(Mailbox& mailbox, Check&& check) {
  if (idle()) return;
  for (int peer = 0; peer < group_.size(); ++peer)
    for (std::vector<Queue>* queues : {&sends_, &receives_}) {
      Queue& queue = (*queues)[static_cast<std::size_t>(peer)];
      while (!queue.empty() && advance(mailbox, peer, queue.front())) {
        count(queue.front());
        queue.pop_front();
        --pending_;
        ++moves_;
      }
      if (queue.empty()) continue;
      const Pair& oldest = queue.front();
      check(peer, oldest.header.call, oldest.is_matched, oldest.start);
    }
}

}  // namespace ngd::comm::mpi
