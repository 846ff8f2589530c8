// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/names.hpp"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <map>

#include "base/digest.hpp"
#include "base/error.hpp"

namespace ngd::comm::shm {

namespace {

// Return the address of an abstract socket. `name` does not have the null byte at the beginning.
Address address_of(const std::string& name) {
  Address result;
  result.address.sun_family = AF_UNIX;
  std::memcpy(result.address.sun_path + 1, name.data(), name.size());
  result.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return result;
}

// Return the user whose process listens at an address; nothing if no process does.
std::optional<uid_t> listener_at(const Address& address) {
  const Descriptor probe = open_socket();
  if (::connect(probe.get(), address.get(), address.length) != 0) return {};
  return peer_user(probe.get());
}

// Read one entry of the kernel's list of sockets. If the socket of the entry has one of the names
// in `addresses`, record the user of the socket in `holders`.
void record_holder(nlmsghdr* entry, const std::vector<Address>& addresses, Holders& holders) {
  std::string_view name;
  std::optional<uid_t> user;
  auto* socket_info = static_cast<unix_diag_msg*>(NLMSG_DATA(entry));
  auto length = static_cast<int>(NLMSG_PAYLOAD(entry, sizeof *socket_info));
  for (auto* each = reinterpret_cast<rtattr*>(socket_info + 1); RTA_OK(each, length);
       each = RTA_NEXT(each, length)) {
    if (each->rta_type == UNIX_DIAG_NAME)
      name = {static_cast<const char*>(RTA_DATA(each)), RTA_PAYLOAD(each)};
    if (each->rta_type == UNIX_DIAG_UID && RTA_PAYLOAD(each) == sizeof(uid_t)) {
      user.emplace();
      std::memcpy(&*user, RTA_DATA(each), sizeof(uid_t));
    }
  }
  if (name.empty() || name.front() != '\0') return;
  for (std::size_t i = 0; i < addresses.size(); ++i)
    if (!holders[i] && addresses[i].name() == name.substr(1)) holders[i] = user;
}

// Add to `holders` the users that have bound a name but do not listen on it. They are found in the
// kernel's list of sockets (sock_diag(7)). A sandbox may hide the list.
void ask_the_kernel(const std::vector<Address>& addresses, Holders& holders) {
  const Descriptor link(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  if (!link.valid()) return;
  struct {
    nlmsghdr header;
    unix_diag_req what;
  } request{};
  request.header.nlmsg_len = sizeof request;
  request.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  request.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  request.what.sdiag_family = AF_UNIX;
  request.what.udiag_states = ~0u;
  request.what.udiag_show = UDIAG_SHOW_NAME | UDIAG_SHOW_UID;
  if (::send(link.get(), &request, sizeof request, 0) < 0) return;
  std::vector<char> buffer(32 << 10);
  for (;;) {
    auto length = ::recv(link.get(), buffer.data(), buffer.size(), 0);
    if (length < 0 && errno == EINTR) continue;
    if (length <= 0) return;
    auto bytes_left = static_cast<unsigned>(length);
    for (auto* each = reinterpret_cast<nlmsghdr*>(buffer.data()); NLMSG_OK(each, bytes_left);
         each = NLMSG_NEXT(each, bytes_left)) {
      if (each->nlmsg_type == NLMSG_DONE || each->nlmsg_type == NLMSG_ERROR) return;
      if (each->nlmsg_type == SOCK_DIAG_BY_FAMILY) record_holder(each, addresses, holders);
    }
  }
}

}  // namespace

std::string Address::name() const {
  return {address.sun_path + 1, length - offsetof(sockaddr_un, sun_path) - 1};
}

std::vector<Address> addresses_of(const std::string& job_key) {
  std::vector<Address> addresses;
  for (int i = 0; i < kNames; ++i)
    addresses.push_back(address_of(
        concat("ngd-", ::geteuid(), "-", sha256_hex(concat(job_key, "/", i)).substr(0, 32))));
  return addresses;
}

Descriptor open_socket() {
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) fail(ErrorKind::Init, "ngd.init: cannot open a socket: ", error_text(errno));
  return socket;
}

std::optional<uid_t> peer_user(int socket) noexcept {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) return {};
  return credentials.uid;
}

Holders holders_of(const std::vector<Address>& addresses) {
  Holders holders;
  for (const Address& each : addresses) holders.push_back(listener_at(each));
  ask_the_kernel(addresses, holders);
  return holders;
}

bool all_held_by_others(const Holders& holders) {
  return std::all_of(holders.begin(), holders.end(),
                     [](const auto& user) { return user && *user != ::geteuid(); });
}

std::string describe_others(const Holders& holders) {
  std::map<uid_t, int> names_of;
  for (const auto& user : holders)
    if (user && *user != ::geteuid()) ++names_of[*user];
  std::string text;
  for (const auto& [user, names] : names_of)
    text += concat(text.empty() ? "" : " and ", "uid ", user, " holds ", names);
  if (!text.empty())
    text += concat(" of the ", holders.size(),
                   " names of the rendezvous of this job: start it with ngd run, or set NGD_JOB to "
                   "a key that is hard to guess");
  return text;
}

}  // namespace ngd::comm::shm
