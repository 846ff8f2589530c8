// SPDX-License-Identifier: Apache-2.0
// Whether a rank still lives. A zombie is dead; kill(pid, 0) and a socket's end are no proof.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/shm/system.hpp"

namespace ngd::comm::shm {

class Liveness {
 public:
  virtual ~Liveness() = default;
  virtual bool alive(int rank) noexcept = 0;
};

// A peer process: by its pidfd, or, where the kernel has none (before Linux 5.3), by its place in
// /proc, where the start time tells it from a later process of the same number.
struct PeerProcess {
  Descriptor pidfd;
  std::int32_t pid = 0;
  std::uint64_t start_time = 0;
};

Descriptor open_own_pidfd();                    // invalid where the kernel has none
std::uint64_t start_time_of(std::int32_t pid);  // 0 = no such process, or a zombie
std::unique_ptr<Liveness> make_process_liveness(std::vector<PeerProcess> peers);
std::unique_ptr<Liveness> make_thread_liveness();  // threads of a living process all live

}  // namespace ngd::comm::shm
