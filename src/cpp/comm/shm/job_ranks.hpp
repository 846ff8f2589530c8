// SPDX-License-Identifier: Apache-2.0
// The numbers of this host's ranks in the job. In shared memory, the ranks of a host are numbered
// from 0. In a job on several hosts, the same ranks have other numbers in the job, and error
// messages use the numbers in the job. The rank that finds a failure converts the numbers when it
// writes the message, so the message is not changed later.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

namespace ngd::comm::shm {

class JobRanks {
 public:
  JobRanks() = default;  // each rank has the same number on this host and in the job
  explicit JobRanks(std::vector<int> by_rank) : by_rank_(std::move(by_rank)) {}

  // Return the number in the job of rank `rank` of this host. A number that is not a rank of this
  // host is returned unchanged: it comes from a wrong message, and the error message shows it.
  int operator[](int rank) const noexcept {
    const bool is_known = rank >= 0 && rank < static_cast<int>(by_rank_.size());
    return is_known ? by_rank_[static_cast<std::size_t>(rank)] : rank;
  }
  // Return the rank on this host of the rank with number `job_rank` in the job; -1 if that rank is
  // on another host.
  int local(int job_rank) const noexcept {
    if (by_rank_.empty()) return job_rank;
    const auto position = std::find(by_rank_.begin(), by_rank_.end(), job_rank);
    return position == by_rank_.end() ? -1 : static_cast<int>(position - by_rank_.begin());
  }
  // Convert rank numbers on this host to rank numbers in the job, in the same order.
  std::vector<int> of(std::vector<int> ranks) const {
    for (int& rank : ranks) rank = (*this)[rank];
    return ranks;
  }

 private:
  std::vector<int> by_rank_;
};

}  // namespace ngd::comm::shm
