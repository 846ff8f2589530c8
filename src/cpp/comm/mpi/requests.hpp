// SPDX-License-Identifier: Apache-2.0
// A set of nonblocking MPI messages. One call of MPI tests all of them.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "comm/mpi/library.hpp"
#include "comm/mpi/rank_set.hpp"

namespace ngd::comm::mpi {

class Requests {
 public:
  explicit Requests(const RankSet& group) : group_(&group) {}
  Requests(Requests&&) = default;
  ~Requests() { cancel(); }

  // Post a message of at most kMaxMessageBytes; 0 bytes: post nothing. A peer is a rank of the
  // group.
  void send(const void* data, std::size_t bytes, int peer, int tag);
  void receive(void* data, std::size_t bytes, int peer, int tag);

  // Return true when all posted messages have completed. Throws Unreachable if MPI cannot complete
  // one.
  bool test();
  // Return the ranks of the world whose messages have not completed, ascending, each once.
  std::vector<int> pending_peers() const;
  // Give up the messages that have not completed. Returns false if MPI still holds a buffer, which
  // must then never be freed.
  bool cancel() noexcept;

 private:
  Request& prepare(std::size_t bytes, int peer);
  // Throw Unreachable if `code`, which MPI returned when the last message was posted, is an error.
  // Then mark the request of this message as complete.
  void check_posted(int code);

  const RankSet* group_;
  std::vector<Request> requests_;
  std::vector<int> peers_;  // the world rank of each request
  std::vector<Completed> completed_;
};

inline constexpr std::size_t kMaxMessageBytes = std::size_t{1} << 20;

// Cancel a message, and wait at most 50 ms until MPI has done so. Returns false if it has not.
bool give_up(Request& request) noexcept;

// The error that is thrown if MPI could not complete messages to or from the ranks `who`. If `who`
// is empty, MPI did not report the ranks.
class Unreachable final : public Error {
 public:
  Unreachable(const std::vector<int>& who, int code);
};

}  // namespace ngd::comm::mpi
