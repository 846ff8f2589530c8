// SPDX-License-Identifier: Apache-2.0
// The socket names for the rendezvous of a job, and the users that hold them.
//
// The name of an abstract socket belongs to the process that binds it first, which may be a process
// of another user. So a job has several names. Rank 0 takes the first free one. The other ranks try
// each name until a process of their own user answers. A name consists of the user's id and a hash
// of the job's key and a number. The job's key cannot be derived from the hash, so a user who sees
// one name cannot compute the other names, and take them all.
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
  std::string name() const;  // without the null byte with which each abstract name begins
};

// Return the kNames addresses of a job for the user of this process, in the order in which the
// ranks try them.
std::vector<Address> addresses_of(const std::string& job_key);

// Return a new socket of this host (AF_UNIX) that is not bound and does not block. Throws Init.
Descriptor open_socket();
// Return the user of the process at the other end, as the kernel recorded it when that process
// connected or began to listen.
std::optional<uid_t> peer_user(int socket) noexcept;

// For each name, the user that holds it; nullopt if no user does, or if the user is not known.
using Holders = std::vector<std::optional<uid_t>>;
Holders holders_of(const std::vector<Address>& addresses);
// Return true if other users are known to hold all socket names of the job. Then no rank 0 of this
// user can have one.
bool all_held_by_others(const Holders& holders);
// Return "uid 1234 holds 3 and uid 1235 holds 1 of the 16 names ...", or "" if no user but this one
// holds a name.
std::string describe_others(const Holders& holders);

}  // namespace ngd::comm::shm
