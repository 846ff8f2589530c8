// SPDX-License-Identifier: Apache-2.0
// The memory that can still be allocated before the kernel kills a process.
#pragma once

#include <cstdint>
#include <string>

namespace ngd::comm::shm {

struct Headroom {
  std::uint64_t bytes = ~std::uint64_t{0};
  std::string limit;  // its source, such as "the memory cgroup /job (512 MiB)"
};

// Return the least of several bounds: the machine's free memory, and the memory that is left in
// each memory cgroup that encloses this process (cgroup version 1 or 2). Caches of files count as
// free. A bound that cannot be read is ignored.
Headroom headroom();

// If RLIMIT_AS does not allow this process to map `bytes` more, return a text with the limit, the
// part of the limit that is left, and the remedy. Otherwise return "".
std::string address_space_limit(std::uint64_t bytes);

}  // namespace ngd::comm::shm
