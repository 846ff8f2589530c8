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
                   " cannot be reached any more: MPI says ", error_text(code)),
            who) {}

void Requests::keep(MPI_Request request, int code, int peer) {
  if (code != MPI_SUCCESS) throw Unreachable({channel_->world(peer)}, code);
  requests_.push_back(request);
  peers_.push_back(channel_->world(peer));
}

void Requests::send(const void* data, std::size_t bytes, int peer, int tag) {
  if (bytes == 0) return;
  check(bytes <= kMaxMessageBytes, "an MPI message of ", bytes, " bytes");
  MPI_Request request = MPI_REQUEST_NULL;
  const int code = MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, channel_->world(peer), tag,
                             channel_->comm, &request);
  keep(request, code, peer);
}

void Requests::receive(void* data, std::size_t bytes, int peer, int tag) {
  if (bytes == 0) return;
  check(bytes <= kMaxMessageBytes, "an MPI message of ", bytes, " bytes");
  MPI_Request request = MPI_REQUEST_NULL;
  const int code = MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, channel_->world(peer), tag,
                             channel_->comm, &request);
  keep(request, code, peer);
}

bool Requests::test() {
  if (requests_.empty()) return true;
  owns_all_memory();
  const int n = static_cast<int>(requests_.size());
  completed_.resize(requests_.size());
  statuses_.resize(requests_.size());
  int count = 0;
  const int code = MPI_Testsome(n, requests_.data(), &count, completed_.data(), statuses_.data());
  if (code == MPI_ERR_IN_STATUS) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
      const int error = statuses_[i].MPI_ERROR;
      if (error != MPI_SUCCESS && error != MPI_ERR_PENDING)
        throw Unreachable({peers_[static_cast<std::size_t>(completed_[i])]}, error);
    }
  } else if (code != MPI_SUCCESS) {
    throw Unreachable(pending_peers(), code);
  }
  const bool all = std::all_of(requests_.begin(), requests_.end(),
                               [](MPI_Request r) { return r == MPI_REQUEST_NULL; });
  if (all) {
    requests_.clear();
    peers_.clear();
  }
  return all;
}

std::vector<int> Requests::pending_peers() const {
  std::set<int> peers;
  for (std::size_t i = 0; i < requests_.size(); ++i)
    if (requests_[i] != MPI_REQUEST_NULL) peers.insert(peers_[i]);
  return {peers.begin(), peers.end()};
}

bool give_up(MPI_Request& request) noexcept {
  if (request == MPI_REQUEST_NULL) return true;
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized || left_to_mpi()) return false;
  const auto limit = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
  int complete = 0;
  MPI_Cancel(&request);
  do {
    if (MPI_Test(&request, &complete, MPI_STATUS_IGNORE) != MPI_SUCCESS) return false;
  } while (!complete && std::chrono::steady_clock::now() < limit);
  return complete != 0;
}

bool Requests::cancel() noexcept {
  bool clean = true;
  for (MPI_Request& request : requests_) clean = give_up(request) && clean;
  if (!clean) leave_to_mpi();
  requests_.clear();
  peers_.clear();
  return clean;
}

}  // namespace ngd::comm::mpi
