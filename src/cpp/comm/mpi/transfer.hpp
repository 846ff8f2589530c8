// SPDX-License-Identifier: Apache-2.0
// How the data of one large collective moves: a state machine that never blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "comm/blocks.hpp"
#include "comm/collective.hpp"
#include "comm/mpi/channel.hpp"
#include "comm/mpi/message_buffer.hpp"
#include "comm/mpi/requests.hpp"

namespace ngd::comm::mpi {

class Transfer {
 public:
  virtual ~Transfer() = default;
  // Does what can be done now; true when destination holds the result and MPI holds no buffer.
  virtual bool advance() = 0;
  // The world ranks that this one waits for.
  virtual std::vector<int> pending_peers() const = 0;
  std::uint64_t steps() const { return steps_; }  // grows whenever something has moved

 protected:
  // Add memory for messages. This class owns it and derived classes own the requests, so every
  // request ends before its memory is freed.
  MessageBuffer& add_buffer(std::size_t bytes) { return buffers_.emplace_back(bytes); }
  MessageBuffer& add_buffer(Communicator& local, std::size_t bytes) {
    return buffers_.emplace_back(local, bytes);
  }

  std::uint64_t steps_ = 0;

 private:
  std::deque<MessageBuffer> buffers_;
};

// The range is cut into windows, and a few lanes work on one window each, so that one window's sum
// overlaps another's messages and scratch stays bounded. In a lane a window goes through steps: a
// step does what its predecessor's messages allow, and posts its own. Every rank visits windows and
// steps in the same order, and a lane has its own tag: messages of a pair match in the order
// posted.
class LaneTransfer : public Transfer {
 public:
  bool advance() final;
  std::vector<int> pending_peers() const override;

 protected:
  struct Lane {
    Lane(const Channel& channel, int index, int tag_)
        : number(index), tag(tag_), requests(channel) {}
    const int number;
    const int tag;
    std::size_t next = 0;  // where this lane's next window begins: every rank cuts alike
    bool active = false;
    Slice window;
    int step = 0;
    MessageBuffer scratch;  // declared before the requests that use it
    Requests requests;
  };
  struct Cut {
    std::size_t elements;  // of the whole range
    std::size_t window;    // of one window
    int lanes;
  };
  LaneTransfer(const Channel& channel, int tag, const Collective& collective, Cut cut);

  // Whether lane.step may be carried out: whether what its predecessor began has ended.
  virtual bool ready(Lane& lane) { return lane.requests.test(); }
  // The outcome of a step. A blocked step had no effect, and advance() repeats it later.
  enum class Outcome { Continues, WindowComplete, Blocked };
  // Carry out lane.step. WindowComplete: the window was complete before this step.
  virtual Outcome step(Lane& lane) = 0;

  const std::byte* source(const Slice& s) const;
  std::byte* destination(const Slice& s) const;
  std::size_t bytes(const Slice& s) const { return s.count * element_bytes_; }
  std::size_t lanes() const { return lanes_.size(); }
  std::size_t elements() const { return cut_.elements; }
  std::size_t window_elements() const { return cut_.window; }

  const Channel& channel_;
  const int rank_;
  const int size_;
  const Collective collective_;
  const std::size_t element_bytes_;

 private:
  const Cut cut_;
  std::deque<Lane> lanes_;
};

// A long message to or from one rank, cut into messages that MPI takes, a few at a time.
class Stream {
 public:
  Stream(const Channel& channel, int peer, int tag, const void* source, void* destination,
         std::size_t bytes);
  // Posts what can be posted, and counts it to `steps`; true when all has arrived, or been taken.
  bool advance(std::uint64_t& steps);
  std::vector<int> pending_peers() const;

 private:
  static constexpr std::size_t kDepth = 4;

  int peer_;
  int tag_;
  const std::byte* source_;  // one of these two
  std::byte* destination_;
  std::size_t bytes_;
  std::size_t posted_ = 0;
  std::size_t messages_ = 0;
  std::vector<Requests> slots_;  // message m is in slot m % kDepth: they are posted in order
};

// A collective's transfer over MPI alone, on the tags from `tag` on.
std::unique_ptr<Transfer> make_transfer(const Channel& channel, int tag,
                                        const Collective& collective);

// The reductions of adding up whole blocks at their owners, in the canonical order. all_reduce:
// rank r adds up slice r and sends the result to all, 2 S (n - 1) / n bytes a rank; reduce: to the
// root; reduce_scatter: block r stays with rank r.
std::unique_ptr<Transfer> make_flat_reduction(const Channel& channel, int tag,
                                              const Collective& collective);

// The ring: n - 1 steps of reduce-scatter, n - 1 of all-gather, each to the next rank. Slice r is
// summed in the order r + 1, r + 2, ..., r. Partial sums of two-byte floats travel as float32.
std::unique_ptr<Transfer> make_ring_all_reduce(const Channel& channel, int tag,
                                               const Collective& collective);

// A pipeline from the root through the ranks after it.
std::unique_ptr<Transfer> make_chain_broadcast(const Channel& channel, int tag,
                                               const Collective& collective);

// all_gather, gather, scatter and all_to_all: each block goes straight from its owner to the rank
// that receives it; the kinds differ in nothing but who sends what.
std::unique_ptr<Transfer> make_block_exchange(const Channel& channel, int tag,
                                              const Collective& collective);

// Elements of a window of which each of n owners reduces a slice, and how many lanes do so.
inline constexpr int kReduceLanes = 8;
std::size_t reduce_window(DType dtype, int owners);

}  // namespace ngd::comm::mpi
