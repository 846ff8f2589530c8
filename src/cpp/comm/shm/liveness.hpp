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

// A peer process: by its pidfd; where the kernel has none (before Linux 5.3), or somebody has
// closed it, by its place in /proc, where the start time tells it from a later process of the same
// number.
struct PeerProcess {
  KeptDescriptor pidfd;
  std::int32_t pid = 0;
  std::uint64_t start_time = 0;
};

Descriptor open_own_pidfd();  // invalid where the kernel has none
// 0 = no such process, or a zombie; kUntold where /proc cannot be read.
std::uint64_t start_time_of(std::int32_t pid) noexcept;
inline constexpr std::uint64_t kUntold = ~std::uint64_t{0};
std::unique_ptr<Liveness> make_process_liveness(std::vector<PeerProcess> peers);
std::unique_ptr<Liveness> make_thread_liveness();  // threads of a living process all live

}  // namespace ngd::comm::shm
