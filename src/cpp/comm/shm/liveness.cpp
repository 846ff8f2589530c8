// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/liveness.hpp"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>

namespace ngd::comm::shm {

namespace {

class ProcessLiveness final : public Liveness {
 public:
  explicit ProcessLiveness(std::vector<PeerProcess> peers) : peers_(std::move(peers)) {}

  bool alive(int rank) noexcept override {
    const PeerProcess& peer = peers_[static_cast<std::size_t>(rank)];
    if (peer.pidfd.valid()) {
      pollfd fd{peer.pidfd.get(), POLLIN, 0};
      return ::poll(&fd, 1, 0) <= 0;  // readable from the moment of death
    }
    try {
      return start_time_of(peer.pid) == peer.start_time;
    } catch (...) {
      return true;
    }
  }

 private:
  std::vector<PeerProcess> peers_;
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

std::uint64_t start_time_of(std::int32_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  if (!std::getline(file, line)) return 0;
  // The name, field 2, is in parentheses and may hold any character: read on from the last one.
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  std::string field;
  fields >> field;  // field 3: the state
  if (field == "Z" || field == "X") return 0;
  for (int i = 4; i <= 22; ++i) fields >> field;
  return std::stoull(field);  // field 22: the start time
}

std::unique_ptr<Liveness> make_process_liveness(std::vector<PeerProcess> peers) {
  return std::make_unique<ProcessLiveness>(std::move(peers));
}

std::unique_ptr<Liveness> make_thread_liveness() { return std::make_unique<ThreadLiveness>(); }

}  // namespace ngd::comm::shm
