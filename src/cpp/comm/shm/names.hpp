// SPDX-License-Identifier: Apache-2.0
// The names under which a job may meet, and who holds them.
//
// Names of abstract sockets belong to the process that binds them first, so a job has several: rank
// 0 takes the first that is free, and the others look behind each for a process of their own user.
// Each carries the user's id, and a hash from which neither the job's key nor another name follows.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#include <optional>
#include <string>
#include <vector>

#include "comm/shm/system.hpp"

namespace ngd::comm::shm {

inline constexpr int kNames = 16;

struct Address {
  sockaddr_un address{};
  socklen_t length = 0;
  const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&address); }
  std::string name() const;  // without the null byte at its begin
};

std::vector<Address> addresses_of(const std::string& job_key);

Descriptor open_socket();  // throws Init
// The user of the process at the other end, when it connected or began to listen: the kernel tells.
std::optional<uid_t> peer_user(int socket) noexcept;

// The user who holds each of the names; nothing where nobody does, or nobody tells.
using Holders = std::vector<std::optional<uid_t>>;
Holders holders_of(const std::vector<Address>& addresses);
bool all_held_by_others(const Holders& holders);
// "uid 1234 holds 3 and uid 1235 holds 1 of the 16 names ..."; empty where only my user holds any.
std::string describe_others(const Holders& holders);

}  // namespace ngd::comm::shm
