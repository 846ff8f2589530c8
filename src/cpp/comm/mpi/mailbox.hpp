// SPDX-License-Identifier: Apache-2.0
// The stream of messages from every rank to every other, in order and ahead of the data.
//
// One receive per peer is always posted, so a peer's failure is seen whatever this rank is doing;
// what has arrived and was not taken yet stays in the peer's queue.
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
  explicit Mailbox(const RankSet& group);  // which must outlive it
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  void post(const Header& header, const void* payload, std::size_t payload_bytes);  // to all
  void post_to(int peer, const Header& header, const void* payload, std::size_t payload_bytes);
  // Moves what has arrived into the queues. Throws Unreachable, Init (a peer runs another ngd).
  void progress();

  const std::deque<Message>& from(int peer) const { return peers_[index(peer)].arrived; }
  Message take(int peer);
  // What a peer has sent to me alone, in the order of its sends.
  std::deque<Message>& sent_by(int peer) { return peers_[index(peer)].sent; }
  // Set once a peer has said Failed or Left: no Submitted comes after it.
  const std::optional<Message>& ended(int peer) const { return peers_[index(peer)].ended; }
  std::chrono::steady_clock::time_point heard_end(int peer) const {
    return peers_[index(peer)].heard_end;
  }
  const std::optional<std::string>& details(int peer) const { return peers_[index(peer)].details; }
  bool has_left(int peer) const { return peers_[index(peer)].left; }
  bool everything_sent() { return reap(); }

  // Stops receiving. False if a peer has not said Left, or a message has not been sent. Memory that
  // MPI does not let go stays for as long as the process lives; asks for none itself.
  bool close() noexcept;

 private:
  using Buffer = std::unique_ptr<std::byte[]>;
  struct Peer {
    Buffer buffer;
    std::deque<Message> arrived;
    std::deque<Message> sent;
    std::optional<Message> ended;
    std::chrono::steady_clock::time_point heard_end;
    std::optional<std::string> details;
    bool left = false;
  };
  struct Outgoing {
    Buffer buffer;
    std::size_t bytes;
    Requests requests;
  };
  static std::size_t index(int peer) { return static_cast<std::size_t>(peer); }
  std::string name(int peer) const { return concat("rank ", group_.world(peer)); }
  Outgoing& compose(Header header, const void* payload, std::size_t payload_bytes);
  void listen(int peer);
  void sort_in(int peer, std::size_t bytes);
  bool reap();

  const RankSet& group_;
  std::vector<Peer> peers_;
  std::vector<Request> receives_;  // by rank; null where nothing more will come
  std::vector<Completed> completed_;
  std::unique_ptr<std::deque<Outgoing>> outgoing_ = std::make_unique<std::deque<Outgoing>>();
};

}  // namespace ngd::comm::mpi
