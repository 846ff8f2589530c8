// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/channel.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/step.hpp"
#include "comm/messages.hpp"

namespace ngd::comm::shm {

namespace {

constexpr std::uint64_t kPatienceNs = 5'000'000'000;
constexpr int kLookForRoomMs = 10;

// Wait before a refused message is sent again, for at most `limit_ms` milliseconds. If the socket
// is full (`is_full`), wait until the other end has read something. If the kernel has refused more
// descriptors, only sleep for a short time: the kernel does not report when other descriptors were
// received.
void wait_for_room(int fd, bool is_full, int limit_ms) noexcept {
  pollfd writable{fd, POLLOUT, 0};
  ::poll(is_full ? &writable : nullptr, is_full ? 1 : 0,
         is_full ? limit_ms : std::min(limit_ms, kLookForRoomMs));
}

}  // namespace

void Message::set_text(std::string_view value) noexcept {
  const std::string_view head = head_of(value, sizeof text - 1);
  *std::copy(head.begin(), head.end(), text) = '\0';
}

Message make_message(Topic topic, int rank, int size) {
  Message message;
  std::memset(&message.cores, 0, sizeof message.cores);
  std::memset(message.text, 0, sizeof message.text);
  message.magic = kMagic;
  message.version = kLayoutVersion;
  message.topic = topic;
  message.rank = rank;
  message.size = size;
  return message;
}

Clock::Clock(double timeout_seconds, const std::function<bool()>& interrupt)
    : seconds_(timeout_seconds),
      end_ns_(now_ns() + static_cast<std::uint64_t>(timeout_seconds * 1e9)),
      interrupt_(interrupt) {}

bool Clock::expired() const noexcept { return seconds_ > 0 && now_ns() >= end_ns_; }

int Clock::next_poll_ms() const {
  if (interrupt_ && interrupt_()) fail(ErrorKind::Interrupted, "interrupted in ngd.init()");
  if (seconds_ <= 0) return 100;
  const std::uint64_t now = now_ns();
  const std::uint64_t left_ms = end_ns_ > now ? (end_ns_ - now) / 1'000'000 + 1 : 0;
  return static_cast<int>(std::min<std::uint64_t>(left_ms, 100));
}

Channel::Try Channel::try_to_send(const Message& message, int segment_fd, int pidfd) noexcept {
  iovec data{const_cast<Message*>(&message), sizeof message};
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  if (segment_fd >= 0) {
    const int fds[2] = {segment_fd, pidfd};
    const std::size_t bytes = (pidfd >= 0 ? 2 : 1) * sizeof(int);
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(bytes);
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(bytes);
    std::memcpy(CMSG_DATA(rights), fds, bytes);
  }
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(fd(), &header, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent == static_cast<ssize_t>(sizeof message)) return Try::Sent;
  if (errno == EAGAIN || errno == EWOULDBLOCK) return Try::Full;
  if (errno == ETOOMANYREFS || errno == ENOBUFS) return Try::TooManyDescriptors;
  return Try::Gone;
}

bool Channel::send(const Message& message) noexcept {
  protocol_step();
  const std::uint64_t end = now_ns() + kPatienceNs;
  for (;;) {
    const Try result = try_to_send(message, -1, -1);
    if (result == Try::Sent) break;
    if (result == Try::Gone || now_ns() >= end) return false;
    wait_for_room(fd(), result == Try::Full, 100);
  }
  protocol_step();
  return true;
}

Channel::Sent Channel::send(const Message& message, int segment_fd, int pidfd, const Clock& clock) {
  protocol_step();
  const std::uint64_t end = now_ns() + kPatienceNs;
  for (;;) {
    const Try result = try_to_send(message, segment_fd, pidfd);
    if (result == Try::Sent) break;
    if (result == Try::Gone) return Sent::Gone;
    if (now_ns() >= end || clock.expired())
      return result == Try::Full ? Sent::Gone : Sent::TooManyDescriptors;
    wait_for_room(fd(), result == Try::Full, clock.next_poll_ms());
  }
  protocol_step();
  return Sent::Yes;
}

Channel::Got Channel::receive(Parcel& parcel) noexcept {
  iovec data{&parcel.message, sizeof parcel.message};
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = control;
  ssize_t length = 0;
  int ends = 0;
  do {
    header.msg_controllen = sizeof control;  // recvmsg() has changed it
    length = ::recvmsg(fd(), &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (length == 0) ++ends;
    // recvmsg() returns ECONNRESET once if the other process ended without reading all its
    // messages. Call it again: the next calls return the last messages of that process. After a
    // first end of file (length 0), read once more too: Linux looks for a message first and for the
    // end afterwards, and the other process may send a message and end between the two.
  } while ((length == 0 && ends == 1) || (length < 0 && (errno == EINTR || errno == ECONNRESET)));
  if (length < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Got::Nothing;
  if (length <= 0) return Got::End;
  protocol_step();
  for (cmsghdr* each = CMSG_FIRSTHDR(&header); each != nullptr; each = CMSG_NXTHDR(&header, each)) {
    if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_RIGHTS) continue;
    int fds[2] = {-1, -1};
    std::memcpy(fds, CMSG_DATA(each), std::min(each->cmsg_len - CMSG_LEN(0), sizeof fds));
    parcel.segment = Descriptor(fds[0]);
    parcel.pidfd = Descriptor(fds[1]);
  }
  parcel.cut = (header.msg_flags & MSG_CTRUNC) != 0;
  // A message of another length is from another version of ngd, or from another program. Clear its
  // magic number, so that the caller rejects the message.
  if (length != static_cast<ssize_t>(sizeof parcel.message)) parcel.message.magic = 0;
  return Got::Parcel;
}

}  // namespace ngd::comm::shm
