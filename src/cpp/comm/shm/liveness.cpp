// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/liveness.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace ngd::comm::shm {

namespace {

class ProcessLiveness final : public Liveness {
 public:
  explicit ProcessLiveness(std::vector<PeerProcess> peers) : peers_(std::move(peers)) {
    for (const PeerProcess& peer : peers_)
      in_proc_.push_back(start_time_of(peer.pid) == peer.start_time);
  }

  bool alive(int rank) noexcept override {
    const auto index = static_cast<std::size_t>(rank);
    const PeerProcess& peer = peers_[index];
    pollfd fd{peer.pidfd.get(), POLLIN, 0};
    const bool has_pidfd = fd.fd >= 0;
    if (has_pidfd && ::poll(&fd, 1, 0) <= 0) return true;  // a pidfd is readable after the death
    // Here there is no open pidfd, or it has reported the end of the peer's process. If /proc does
    // not show that process (another container), return true only if this rank got no pidfd.
    if (!in_proc_[index]) return !has_pidfd;
    const std::uint64_t start_time = start_time_of(peer.pid);
    return start_time == kUnknownStart ? !has_pidfd : start_time == peer.start_time;
  }

 private:
  std::vector<PeerProcess> peers_;
  // For each rank: true if /proc/PID shows the peer's process. False if the peer is in another
  // container, so that /proc does not show its process here.
  std::vector<bool> in_proc_;
};

class ThreadLiveness final : public Liveness {
  bool alive(int) noexcept override { return true; }
};

}  // namespace

Descriptor open_own_pidfd() {
#if defined(SYS_pidfd_open)
  return Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
#else
  return {};
#endif
}

std::uint64_t start_time_of(std::int32_t pid) noexcept {
  char text[1024];
  std::snprintf(text, sizeof text, "/proc/%d/stat", pid);
  const Descriptor file(::open(text, O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return errno == ENOENT ? 0 : kUnknownStart;
  const ssize_t length = ::read(file.get(), text, sizeof text - 1);
  if (length <= 0) return length < 0 && errno == ESRCH ? 0 : kUnknownStart;
  text[length] = '\0';
  // The name of the process, field 2, is in parentheses and may have any character, so read on
  // after the last parenthesis.
  const char* field = std::strrchr(text, ')');
  if (field == nullptr || field[1] == '\0') return kUnknownStart;
  field += 2;  // field 3 of /proc/PID/stat: the state
  if (*field == 'Z' || *field == 'X') return 0;
  for (int i = 4; i <= 22 && field != nullptr; ++i) {
    field = std::strchr(field, ' ');
    if (field != nullptr) ++field;
  }
  // Field 22 of /proc/PID/stat is the start time.
  return field == nullptr ? kUnknownStart : std::strtoull(field, nullptr, 10);
}

std::unique_ptr<Liveness> make_process_liveness(std::vector<PeerProcess> peers) {
  return std::make_unique<ProcessLiveness>(std::move(peers));
}

std::unique_ptr<Liveness> make_thread_liveness() { return std::make_unique<ThreadLiveness>(); }

}  // namespace ngd::comm::shm
