// SPDX-License-Identifier: Apache-2.0
// The mailbox of a group: short messages between all pairs of ranks. The messages of a pair arrive
// in order. A header arrives before the data that it announces.
//
// The mailbox always has a posted receive for each peer, so a call of progress() can receive a
// peer's report of a failure at any time. The mailbox stores the messages that have arrived,
// separately for each sender, until this rank takes them.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/mpi/requests.hpp"
#include "comm/mpi/wire.hpp"

namespace ngd::comm::mpi {

class Mailbox {
 public:
  explicit Mailbox(const RankSet& group);  // the group must outlive the mailbox
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  // post() sends a message to all other ranks, and post_to() only to `peer`. Both functions copy
  // the payload and do not wait.
  void post(const Header& header, const void* payload, std::size_t payload_bytes);
  void post_to(int peer, const Header& header, const void* payload, std::size_t payload_bytes);
  // Store the messages that have arrived, separately for each sender. Throws Unreachable if MPI
  // could not complete a message, and Init if a peer runs another version of ngd.
  void progress();

  // Return the headers of the collectives of `peer` that have arrived and are not taken yet, in
  // their order.
  const std::deque<Message>& from(int peer) const { return peers_[index(peer)].arrived; }
  // Remove the oldest message of from(peer) and return it. from(peer) must not be empty.
  Message take(int peer);
  // Return the headers of the sends of `peer` to this rank that have arrived and are not taken yet,
  // in their order.
  std::deque<Message>& sent_by(int peer) { return peers_[index(peer)].sent; }
  // Return the message with which a peer has ended its part of the group (Failed or Left), if it
  // has arrived. The peer submits no collective afterwards.
  const std::optional<Message>& ended(int peer) const { return peers_[index(peer)].ended; }
  // Return the time at which the message of ended(peer), Failed or Left, arrived. The message must
  // have arrived.
  std::chrono::steady_clock::time_point ended_at(int peer) const {
    return peers_[index(peer)].ended_at;
  }
  // Return the payload of the latest Details message of `peer` (details.hpp), if one has arrived.
  const std::optional<std::string>& details(int peer) const { return peers_[index(peer)].details; }
  // Return true if a peer has sent Left: it has closed the group, with or without a failure
  // (Failed) before.
  bool has_left(int peer) const { return peers_[index(peer)].left; }
  // Return true if MPI has completed all messages that this rank has sent.
  bool everything_sent() { return release_sent(); }

  // Stop receiving. Returns true if every peer has sent Left (it has closed the group) and all
  // messages of this rank were sent. Otherwise returns false. Memory that MPI still holds is kept
  // until the process ends. Allocates no memory.
  bool close() noexcept;

 private:
  using Buffer = std::unique_ptr<std::byte[]>;
  struct Peer {
    Buffer buffer;
    std::deque<Message> arrived;
    std::deque<Message> sent;
    std::optional<Message> ended;
    std::chrono::steady_clock::time_point ended_at;
    std::optional<std::string> details;
    bool left = false;
  };
  struct Outgoing {
    Buffer buffer;
    std::size_t bytes;
    Requests requests;
  };
  static std::size_t index(int peer) { return static_cast<std::size_t>(peer); }
  // Return a name for error messages, such as "rank 2", with the world rank.
  std::string name(int peer) const { return concat("rank ", group_.world(peer)); }
  // Copy the header and the payload into a new outgoing message, and return a reference to the
  // message. The caller sends it.
  Outgoing& compose(Header header, const void* payload, std::size_t payload_bytes);
  // Post the MPI receive for the next message of `peer`.
  void listen(int peer);
  // Store the message of `bytes` bytes that has arrived from `peer`. Throws Init if the peer runs
  // another version of ngd.
  void deliver(int peer, std::size_t bytes);
  // Free outgoing messages, in their order, up to the first that MPI has not completed. Return true
  // if none is left.
  bool release_sent();

  const RankSet& group_;
  std::vector<Peer> peers_;
  std::vector<Request> receives_;  // one per rank; no_request if the rank sends no more
  std::vector<Completed> completed_;
  std::unique_ptr<std::deque<Outgoing>> outgoing_ = std::make_unique<std::deque<Outgoing>>();
};

}  // namespace ngd::comm::mpi
