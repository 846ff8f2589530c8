// SPDX-License-Identifier: Apache-2.0
// A transfer moves the data of one large collective: a state machine that never blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "comm/blocks.hpp"
#include "comm/collective.hpp"
#include "comm/mpi/message_buffer.hpp"
#include "comm/mpi/rank_set.hpp"
#include "comm/mpi/requests.hpp"

namespace ngd::comm::mpi {

class Transfer {
 public:
  virtual ~Transfer() = default;
  // Advance the transfer as far as possible without waiting. Return true when the destination holds
  // the result and MPI uses no memory of the transfer any more.
  virtual bool advance() = 0;
  // Return the ranks of the world that this rank waits for in the transfer.
  virtual std::vector<int> pending_peers() const = 0;
  std::uint64_t steps() const { return steps_; }  // grows when the transfer advances

 protected:
  // Add memory for messages. This class owns the memory, and derived classes own the requests. So
  // the requests are destroyed before the memory.
  MessageBuffer& add_buffer(std::size_t bytes) { return buffers_.emplace_back(bytes); }
  MessageBuffer& add_buffer(Communicator& local, std::size_t bytes) {
    return buffers_.emplace_back(local, bytes);
  }

  std::uint64_t steps_ = 0;

 private:
  std::deque<MessageBuffer> buffers_;
};

// A window: a state machine that transfers one slice of a collective at a time. When a slice is
// complete, the window continues with a later slice.
struct Window {
  Window(const RankSet& group, int number_, int tag_)
      : number(number_), tag(tag_), requests(group) {}
  const int number;  // the index of the window in its transfer
  const int tag;
  std::size_t next = 0;  // the element at which the next slice of this window begins
  bool active = false;
  Slice slice;
  int step = 0;
  MessageBuffer scratch;  // declared before the requests that use it
  Requests requests;
};

// A transfer in windows, for operands of any size. All ranks cut the elements into the same slices.
// A few windows are active at once, each with one slice. So one window can reduce while another
// window waits for messages, and the scratch memory is bounded. The transfer of a slice is a
// sequence of steps. A step uses the messages that the previous step has posted, and posts the
// messages for the next step. All ranks take the steps of a window in the same order, and each
// window has its own tag. So the n-th message that a rank sends in a window is the n-th that its
// peer receives.
class WindowedTransfer : public Transfer {
 public:
  bool advance() final;
  std::vector<int> pending_peers() const override;

 protected:
  struct Windowing {
    std::size_t elements;         // the number of elements that are divided into slices
    std::size_t window_elements;  // the number of elements of a slice
    int num_windows;              // the number of slices that are transferred at once
  };
  WindowedTransfer(const RankSet& group, int tag, const Collective& collective,
                   Windowing windowing);

  // Return true if step number window.step may begin. By default: if the messages of the previous
  // step have completed.
  virtual bool is_ready(Window& window) { return window.requests.test(); }
  // The outcome of one step in the transfer of a slice (a range of the elements). Continues: the
  // slice needs more steps. SliceComplete: the slice is transferred, so advance() can begin the
  // next one. Blocked: the step has not begun and had no effect; advance() tries it again later.
  enum class Outcome { Continues, SliceComplete, Blocked };
  // Carry out step number window.step. If the slice has no step with this number, the slice is
  // complete: return SliceComplete.
  virtual Outcome step(Window& window) = 0;

  // source() and destination() return the address of `s` in the caller's arrays. bytes() returns
  // its size in bytes.
  const std::byte* source(const Slice& s) const;
  std::byte* destination(const Slice& s) const;
  std::size_t bytes(const Slice& s) const { return s.count * element_bytes_; }
  // num_windows(), elements() and window_elements() return the fields of the Windowing that the
  // constructor was given. They define how the elements are cut into slices.
  std::size_t num_windows() const { return windows_.size(); }
  std::size_t elements() const { return windowing_.elements; }
  std::size_t window_elements() const { return windowing_.window_elements; }

  const RankSet& group_;
  const int rank_;
  const int size_;
  const Collective collective_;
  const std::size_t element_bytes_;

 private:
  const Windowing windowing_;
  std::deque<Window> windows_;
};

// A message of any length to or from one rank: a sequence of MPI messages, a few of them at a time.
class LongMessage {
 public:
  LongMessage(const RankSet& group, int peer, int tag, const void* source, void* destination,
              std::size_t bytes);
  // Post the MPI messages that can be posted, and add the number of new ones to `steps`. Return
  // true when all messages have completed.
  bool advance(std::uint64_t& steps);
  // Return a vector with the world rank of the peer if a posted MPI message has not completed.
  // Otherwise return an empty vector.
  std::vector<int> pending_peers() const;

 private:
  static constexpr std::size_t kDepth = 4;

  int peer_;
  int tag_;
  const std::byte* source_;  // either source_ or destination_ is null
  std::byte* destination_;
  std::size_t bytes_;
  std::size_t posted_ = 0;
  std::size_t messages_ = 0;
  std::vector<Requests> slots_;  // the n-th MPI message uses slots_[n % kDepth]
};

// ---- transfers over MPI only, on the tags from `tag` on; choose.hpp chooses

// Reductions in which every rank owns a part of each slice, and reduces that part in the canonical
// order (base/reduce.hpp). In an all_reduce, the owner sends the result to all ranks. Each rank
// sends 2 S (n - 1) / n bytes, for n ranks and an operand of S bytes. In a reduce, the owner sends
// the result to the root. In a reduce_scatter, the owner keeps the result.
std::unique_ptr<Transfer> make_flat_reduction(const RankSet& group, int tag,
                                              const Collective& collective);

// The ring (reductions.cpp): n - 1 steps of reduce-scatter, then n - 1 steps of all-gather. In each
// step, each rank sends to the next rank. The elements of part r are added in the order of ranks
// r + 1, r + 2, ..., r (modulo n). Partial sums of 16-bit floats travel as float32.
std::unique_ptr<Transfer> make_ring_all_reduce(const RankSet& group, int tag,
                                               const Collective& collective);

// The chain broadcast (exchange.cpp). The data are cut into slices, which travel from rank to rank:
// root, root + 1, and so on. Rank 0 follows the highest rank.
std::unique_ptr<Transfer> make_chain_broadcast(const RankSet& group, int tag,
                                               const Collective& collective);

// The block exchange (exchange.cpp): all_gather, gather, scatter and all_to_all. Each block goes
// directly from its owner to the rank that receives it.
std::unique_ptr<Transfer> make_block_exchange(const RankSet& group, int tag,
                                              const Collective& collective);

// A reduction cuts the operand into slices. kReduceWindows is the number of slices that are
// transferred at once. reduce_window() returns the number of elements of a slice, if each of
// `owners` ranks reduces one part of it.
inline constexpr int kReduceWindows = 8;
std::size_t reduce_window(DType dtype, int owners);

}  // namespace ngd::comm::mpi
