// SPDX-License-Identifier: Apache-2.0
// How much memory may still be taken before the kernel kills somebody for it.
#pragma once

#include <cstdint>
#include <string>

namespace ngd::comm::shm {

struct Headroom {
  std::uint64_t bytes = ~std::uint64_t{0};
  std::string limit;  // what sets it: "the memory cgroup /job (512 MiB)"
};

// The least of what the machine has, and of what the cgroups of this process allow (both versions,
// with all that they lie in). Caches of files count as free. A bound that cannot be read is none.
Headroom headroom();

// If RLIMIT_AS does not allow this process to map `bytes` more: a text with the limit, the rest of
// it, and the remedy. Otherwise empty.
std::string address_space_limit(std::uint64_t bytes);

}  // namespace ngd::comm::shm
