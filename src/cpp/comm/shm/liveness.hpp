// SPDX-License-Identifier: Apache-2.0
// Finds out if the process of a rank is alive. A zombie (a process that has ended, and for which
// its parent has not called wait()) counts as dead. kill(pid, 0) cannot answer this question: it
// succeeds for zombies, and for a later process with the same number. The end of a socket cannot
// answer it either: a child process may keep the socket of a dead process open.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/shm/system.hpp"

namespace ngd::comm::shm {

class Liveness {
 public:
  virtual ~Liveness() = default;
  // Return false if the process of `rank`, a rank of the world, has ended. Return true if this
  // cannot be found out. Does not wait.
  virtual bool alive(int rank) noexcept = 0;
};

// A peer process, identified by its pidfd. There is no pidfd before Linux 5.3, or if the user's
// program has closed it. Then `pid` and `start_time` (from /proc) identify the process: the start
// time distinguishes it from a later process with the same pid.
struct PeerProcess {
  KeptDescriptor pidfd;
  std::int32_t pid = 0;
  std::uint64_t start_time = 0;
};

// Return a pidfd of this process; an invalid descriptor if the kernel does not have pidfds.
Descriptor open_own_pidfd();
// Return the start time of a process, field 22 of /proc/PID/stat. Return 0 for a zombie or if there
// is no such process, kUnknownStart if /proc cannot be read.
std::uint64_t start_time_of(std::int32_t pid) noexcept;
inline constexpr std::uint64_t kUnknownStart = ~std::uint64_t{0};
// Return the Liveness of ranks that are processes. `peers`: one entry per rank of the host.
std::unique_ptr<Liveness> make_process_liveness(std::vector<PeerProcess> peers);
std::unique_ptr<Liveness> make_thread_liveness();  // ranks that are threads are always alive

}  // namespace ngd::comm::shm
