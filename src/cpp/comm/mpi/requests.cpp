// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/requests.hpp"

#include <algorithm>
#include <chrono>
#include <set>

#include "comm/messages.hpp"
#include "comm/mpi/process.hpp"

namespace ngd::comm::mpi {

Unreachable::Unreachable(const std::vector<int>& who, int code)
    : Error(ErrorKind::RankLost,
            concat(who.empty() ? "a rank" : list_ranks(who),
                   " cannot be reached any more (MPI: ", error_text(code),
                   "). It died, or the network failed: read its last output, and the line of the "
                   "launcher about it"),
            who) {}

// Add an entry for a request before its message is posted. MPI may use the memory of the message as
// soon as the message is posted; if adding the entry failed after that, the message could not be
// cancelled.
Request& Requests::prepare(std::size_t bytes, int peer) {
  check(bytes <= kMaxMessageBytes, "an MPI message of ", bytes, " bytes");
  throw_if_left_to_mpi();
  requests_.push_back(library().no_request);
  peers_.push_back(group_->world(peer));
  return requests_.back();
}

void Requests::send(const void* data, std::size_t bytes, int peer, int tag) {
  if (bytes == 0) return;
  Request& request = prepare(bytes, peer);
  const int code = library().send(data, bytes, group_->world(peer), tag, group_->comm, request);
  check_posted(code);
}

void Requests::receive(void* data, std::size_t bytes, int peer, int tag) {
  if (bytes == 0) return;
  Request& request = prepare(bytes, peer);
  const int code = library().receive(data, bytes, group_->world(peer), tag, group_->comm, request);
  check_posted(code);
}

void Requests::check_posted(int code) {
  if (code == kSuccess) return;
  requests_.back() = library().no_request;
  throw Unreachable({peers_.back()}, code);
}

bool Requests::test() {
  if (requests_.empty()) return true;
  throw_if_left_to_mpi();
  completed_.resize(requests_.size());
  std::size_t count = 0;
  const Library& mpi = library();
  const int code = mpi.test_some(requests_.data(), requests_.size(), completed_.data(), count);
  if (code != kSuccess) throw Unreachable(pending_peers(), code);
  for (std::size_t i = 0; i < count; ++i)
    if (completed_[i].error != kSuccess)
      throw Unreachable({peers_[static_cast<std::size_t>(completed_[i].index)]},
                        completed_[i].error);
  const bool are_all_complete = std::all_of(requests_.begin(), requests_.end(),
                                            [&](Request r) { return r == mpi.no_request; });
  if (are_all_complete) {
    requests_.clear();
    peers_.clear();
  }
  return are_all_complete;
}

std::vector<int> Requests::pending_peers() const {
  std::set<int> peers;
  for (std::size_t i = 0; i < requests_.size(); ++i)
    if (requests_[i] != library().no_request) peers.insert(peers_[i]);
  return {peers.begin(), peers.end()};
}

bool give_up(Request& request) noexcept {
  const Library& mpi = library();
  if (request == mpi.no_request) return true;
  if (in_forked_child() || mpi.finalized() || left_to_mpi()) return false;
  const auto limit = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
  bool is_complete = false;
  mpi.cancel(request);
  do {
    if (mpi.test(request, is_complete) != kSuccess) return false;
  } while (!is_complete && std::chrono::steady_clock::now() < limit);
  return is_complete;
}

bool Requests::cancel() noexcept {
  bool is_clean = true;
  for (Request& request : requests_) is_clean = is_clean && give_up(request);
  // If a request cannot be cancelled, the requests after it are not cancelled either: after
  // leave_to_mpi(), ngd makes no MPI call that moves messages.
  if (!is_clean) leave_to_mpi();
  requests_.clear();
  peers_.clear();
  return is_clean;
}

}  // namespace ngd::comm::mpi
