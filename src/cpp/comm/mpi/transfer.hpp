// SPDX-License-Identifier: Apache-2.0
// How the data of one large collective moves: a state machine that never blocks.
//
// The range is cut into windows, and a few lanes work on one window each, so that one window's sum
// overlaps another's messages and scratch stays bounded. In a lane a window goes through steps: a
// step does what its predecessor's messages allow, and posts its own. Every rank visits windows and
// steps in the same order, and a lane has its own tag: messages of a pair match in the order
// posted.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "base/reduce.hpp"
#include "comm/collective.hpp"
#include "comm/mpi/requests.hpp"

namespace ngd::comm::mpi {

class Transfer {
 public:
  virtual ~Transfer() = default;
  // Does what can be done now; true when destination holds the result and MPI holds no buffer.
  bool advance();
  std::vector<int> pending_peers() const;
  std::uint64_t steps() const { return steps_; }  // done so far, on all lanes

 protected:
  struct Lane {
    explicit Lane(MPI_Comm comm) : requests(comm) {}
    ~Lane() {
      // Where MPI does not let go of a message, it keeps the scratch for good.
      if (!requests.cancel()) static_cast<void>(new std::vector<std::byte>(std::move(scratch)));
    }
    std::size_t next = 0;  // where this lane's next window begins: every rank cuts alike
    bool active = false;
    std::size_t begin = 0;  // of the window, in elements
    std::size_t count = 0;
    int step = 0;
    int tag = 0;
    Requests requests;
    std::vector<std::byte> scratch;
  };
  struct Slice {
    std::size_t begin = 0;
    std::size_t count = 0;
  };
  Transfer(MPI_Comm comm, int rank, int size, const Collective& collective, int lanes,
           std::size_t window_elements);

  // Carries out lane.step; false when the window was complete before it.
  virtual bool step(Lane& lane) = 0;

  // The near-equal part of the lane's window that `owner` reduces.
  Slice slice(const Lane& lane, int owner) const;
  const std::byte* source(const Slice& s) const;
  std::byte* destination(const Slice& s) const;
  std::size_t bytes(const Slice& s) const { return s.count * element_bytes_; }

  const int rank_;
  const int size_;
  const Collective collective_;
  const std::size_t element_bytes_;

 private:
  const std::size_t window_elements_;
  std::uint64_t steps_ = 0;
  std::deque<Lane> lanes_;
};

// Every rank's slice r goes to rank r, which sums them in the canonical order and sends the result
// to all: 2 S (n - 1) / n bytes a rank, and the bits of every other flat all-reduce.
std::unique_ptr<Transfer> make_flat_all_reduce(MPI_Comm comm, int rank, int size,
                                               const Collective& collective);

// The ring: n - 1 steps of reduce-scatter, n - 1 of all-gather, each to the next rank. Slice r is
// summed in the order r + 1, r + 2, ..., r. Partial sums of two-byte floats travel as float32.
std::unique_ptr<Transfer> make_ring_all_reduce(MPI_Comm comm, int rank, int size,
                                               const Collective& collective);

// A pipeline from the root through the ranks after it.
std::unique_ptr<Transfer> make_chain_broadcast(MPI_Comm comm, int rank, int size,
                                               const Collective& collective);

struct Arithmetic {
  Combine combine;
  double divisor;
};
Arithmetic arithmetic_of(ReduceOp op, int size);

}  // namespace ngd::comm::mpi
