// SPDX-License-Identifier: Apache-2.0
// The messages of a reduction of one slice of a collective. The slice is divided into one part per
// rank, and each rank owns one part. Each rank sends its contribution for a part to the owner of
// the part. The owner reduces all contributions and sends the result.
//
// The callers give contributions and results as ranges of bytes (std::span), because their elements
// may differ in size. If the results are 16-bit floats, the contributions may be float32.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/dtype.hpp"
#include "base/reduce.hpp"
#include "comm/mpi/transfer.hpp"

namespace ngd::comm::mpi {

class OwnersExchange {
 public:
  explicit OwnersExchange(const RankSet& group)
      : rank_(group.rank), size_(group.size()), terms_(static_cast<std::size_t>(size_)) {}

  // Post the messages with the contributions to the slice. Send contribution_to(rank), this rank's
  // data for the part of the slice that `rank` owns, to every other rank. Receive the data of every
  // other rank for the part that this rank owns, `own_bytes` each, into window.scratch.
  template <class ContributionTo>
  void exchange_contributions(Window& window, std::size_t own_bytes,
                              ContributionTo&& contribution_to) const {
    window.scratch.reserve(own_bytes * static_cast<std::size_t>(size_));
    for (int distance = 1; distance < size_; ++distance)
      window.requests.receive(contribution(window, own_bytes, before(distance)), own_bytes,
                              before(distance), window.tag);
    for (int distance = 1; distance < size_; ++distance) {
      const std::span<const std::byte> theirs = contribution_to(after(distance));
      window.requests.send(theirs.data(), theirs.size(), after(distance), window.tag);
    }
  }

  // Return the address in window.scratch at which the contribution of a rank arrives. Nothing
  // arrives at the address for this rank itself.
  std::byte* contribution(const Window& window, std::size_t own_bytes, int rank) const {
    return window.scratch.data() + own_bytes * static_cast<std::size_t>(rank);
  }

  // Reduce the part of the slice that this rank owns into `result`, in the canonical order of
  // base/reduce.hpp. The operands are `mine` and the contributions of the other ranks.
  void reduce(const Window& window, std::span<const std::byte> mine, Combine combine, DType dtype,
              void* result, double divisor) {
    for (int r = 0; r < size_; ++r)
      terms_[static_cast<std::size_t>(r)] =
          r == rank_ ? mine.data() : contribution(window, mine.size(), r);
    ngd::reduce(combine, dtype, terms_.data(), size_, result, mine.size() / size_of(dtype),
                divisor);
  }

  // Post the messages with the results of the slice. Send `mine`, the reduced part that this rank
  // owns, to all other ranks. Receive the reduced part of each other rank into result_of(rank).
  template <class ResultOf>
  void exchange_results(Window& window, std::span<const std::byte> mine,
                        ResultOf&& result_of) const {
    receive_results(window, result_of);
    for (int distance = 1; distance < size_; ++distance)
      window.requests.send(mine.data(), mine.size(), after(distance), window.tag);
  }

  // Post the messages with the results of a reduction that only the root gets. The root receives
  // the reduced part of each other rank into result_of(rank). Every other rank sends `mine`, the
  // reduced part that it owns, to the root.
  template <class ResultOf>
  void send_results_to(int root, Window& window, std::span<const std::byte> mine,
                       ResultOf&& result_of) const {
    if (rank_ == root)
      receive_results(window, result_of);
    else
      window.requests.send(mine.data(), mine.size(), root, window.tag);
  }

 private:
  // after() and before() return the rank that is `distance` after or before this one, modulo the
  // number of ranks.
  int after(int distance) const { return (rank_ + distance) % size_; }
  int before(int distance) const { return (rank_ - distance + size_) % size_; }

  // For each other rank, post a receive of the part that this other rank has reduced, into
  // result_of(rank).
  template <class ResultOf>
  void receive_results(Window& window, ResultOf& result_of) const {
    for (int distance = 1; distance < size_; ++distance) {
      const std::span<std::byte> theirs = result_of(before(distance));
      window.requests.receive(theirs.data(), theirs.size(), before(distance), window.tag);
    }
  }

  const int rank_;
  const int size_;
  std::vector<const void*> terms_;
};

}  // namespace ngd::comm::mpi
