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

void Message::set_text(std::string_view value) noexcept {
  const std::string_view kept = head_of(value, sizeof text - 1);
  *std::copy(kept.begin(), kept.end(), text) = '\0';
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

bool Channel::send(const Message& message, int segment_fd, int pidfd) noexcept {
  protocol_step();
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
  for (int attempt = 0; attempt < 50;) {  // five seconds for a peer that does not read
    if (::sendmsg(fd(), &header, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof message)) {
      protocol_step();
      return true;
    }
    if (errno == EINTR) continue;
    // Too many descriptors under way, or a full socket: the other end is reading.
    if (errno != EAGAIN && errno != EWOULDBLOCK && errno != ETOOMANYREFS && errno != ENOBUFS)
      return false;
    pollfd writable{fd(), POLLOUT, 0};
    ::poll(&writable, 1, 100);
    ++attempt;
  }
  return false;
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
    header.msg_controllen = sizeof control;  // the call before has changed it
    length = ::recvmsg(fd(), &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (length == 0) ++ends;
    // ECONNRESET is said once where the other end left without having heard me; what it said before
    // comes then. The first end may be wrong, too: Linux looks for a packet, and then for the end.
    // Between the two the other side may send a packet and leave.
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
  // Another layout of messages, or another program altogether.
  if (length != static_cast<ssize_t>(sizeof parcel.message)) parcel.message.magic = 0;
  return Got::Parcel;
}

}  // namespace ngd::comm::shm
