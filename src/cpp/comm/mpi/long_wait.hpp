// SPDX-License-Identifier: Apache-2.0
// A long wait of this rank. The object publishes the rank that this rank waits for. If the wait
// reaches its deadline, the object finds out which ranks are late.
#pragma once

#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/mpi/headers.hpp"
#include "comm/mpi/works.hpp"

namespace ngd::comm::mpi {

class LongWait {
 public:
  LongWait(const GroupContext& group, Headers& headers, const PeerReports& reports,
           const Works& works, Work work) noexcept
      : group_(group), headers_(headers), reports_(reports), works_(works), work_(work) {}
  ~LongWait();
  LongWait(const LongWait&) = delete;
  LongWait& operator=(const LongWait&) = delete;

  // Show the ranks of this host which rank this rank waits for, until this object is destroyed. The
  // caller holds Family::mutex(), the lock for all MPI calls.
  void publish();
  // Fail the world group and all groups made from it, and throw CollectiveTimeout with the ranks
  // that are late.
  [[noreturn]] void throw_timeout(double timeout_seconds);

 private:
  std::vector<std::string> find_culprits(std::vector<int>& missing, bool& is_certain) const;

  const GroupContext& group_;
  Headers& headers_;
  const PeerReports& reports_;
  const Works& works_;
  const Work work_;
  bool is_published_ = false;
};

}  // namespace ngd::comm::mpi
