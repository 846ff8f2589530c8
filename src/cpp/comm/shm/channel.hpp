// SPDX-License-Identifier: Apache-2.0
// The messages with which the ranks of a host find each other at the start (the rendezvous), and
// the file descriptors that travel with the messages.
#pragma once

#include <sched.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/error.hpp"
#include "comm/shm/segment.hpp"
#include "comm/shm/system.hpp"

namespace ngd::comm::shm {

enum class Topic : std::uint32_t { Hello, Waiting, Peer, Ready, Go, Failure };

struct Message {
  std::uint64_t magic = 0;
  std::uint32_t version = 0;
  Topic topic = Topic::Hello;
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::int32_t pid = 0;
  ErrorKind error_kind = ErrorKind::Init;
  std::uint64_t start_time = 0;
  cpu_set_t cores;  // the cores that the rank may use
  // In a Waiting message: the ranks whose first message (Hello) has not arrived yet. In a Failure
  // message: the ranks that the failure blames.
  RankSet ranks;
  char text[2048];  // the error text of a failure

  // Store the text, which is cut to the size of `text`.
  void set_text(std::string_view value) noexcept;
};

// A received message and its descriptors.
struct Parcel {
  Message message;
  Descriptor segment;
  Descriptor pidfd;
  // True if the kernel has dropped descriptors of the message, because this process already has as
  // many open descriptors as it may have.
  bool cut = false;
};

// Return a message of this version of ngd. `rank`: the sender. `size`: the number of ranks of this
// host. The caller fills in the other fields.
Message make_message(Topic topic, int rank, int size);

// The deadline and the interrupt callback of a rendezvous, for all its blocking calls.
class Clock {
 public:
  Clock(double timeout_seconds, const std::function<bool()>& interrupt);
  bool expired() const noexcept;                        // true after the deadline, if there is one
  double seconds() const noexcept { return seconds_; }  // the timeout; 0 = no limit
  // Return the time to pass to the next poll(): at most 100 milliseconds. Throws Interrupted.
  int next_poll_ms() const;

 private:
  double seconds_;
  std::uint64_t end_ns_;
  const std::function<bool()>& interrupt_;
};

// A connection between rank 0 and another rank: a Unix socket that keeps the boundaries of messages
// (SOCK_SEQPACKET). Each packet is one Message.
class Channel {
 public:
  Channel() = default;
  explicit Channel(Descriptor socket) noexcept : socket_(std::move(socket)) {}
  int fd() const noexcept { return socket_.get(); }  // the socket; -1 if it is not open
  // Return true if the channel has a socket, even if the other end is closed.
  bool open() const noexcept { return socket_.valid(); }
  void close() { socket_ = Descriptor(); }

  // Send a message. If the other end does not read, wait for at most five seconds. Return false if
  // the message was not sent or the other end is gone.
  bool send(const Message& message) noexcept;
  // The result when a message with descriptors is sent. Yes: it was sent. Gone: the other end has
  // closed the connection, or does not read. TooManyDescriptors: the kernel refuses the
  // descriptors, because more than RLIMIT_NOFILE descriptors that processes of this user have sent
  // are not received yet.
  enum class Sent { Yes, Gone, TooManyDescriptors };
  // Send a message with descriptors. If the other end does not read, or the kernel refuses the
  // descriptors, try again for at most five seconds, but not after the deadline of `clock`. Throws
  // Interrupted.
  Sent send(const Message& message, int segment_fd, int pidfd, const Clock& clock);
  // Receive one message and its descriptors, without waiting. Parcel: a message was received; if
  // its length is wrong, its magic number is set to 0. Nothing: no message waits. End: the other
  // end is closed.
  enum class Got { Parcel, Nothing, End };
  Got receive(Parcel& parcel) noexcept;

 private:
  enum class Try { Sent, Full, TooManyDescriptors, Gone };
  // Try once to send, without waiting. A descriptor of -1 is not sent; `pidfd` is sent only with
  // `segment_fd`. The result Full means that the other end must read first.
  Try try_to_send(const Message& message, int segment_fd, int pidfd) noexcept;

  Descriptor socket_;
};

}  // namespace ngd::comm::shm
