// SPDX-License-Identifier: Apache-2.0
// The exchange: the algorithm of broadcast, all_gather, gather, scatter, all_to_all and
// reduce_scatter. Each rank copies its blocks from the ranks that have them. exchange.cpp describes
// the algorithm.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/shm/context.hpp"

namespace ngd::comm::shm {

// A block that one rank, the producer, gives another rank, the consumer. Offsets are in bytes.
struct Piece {
  std::uint64_t source = 0;  // the offset of the block in the producer's source
  std::uint64_t bytes = 0;
  std::uint64_t destination = 0;  // the offset of the block in the consumer's destination
  // The address of the block if it can be read without a staging buffer, otherwise null.
  const std::byte* direct = nullptr;
};

// The blocks that this rank takes from each rank (`incoming`) and gives to each rank (`outgoing`),
// by rank. Later exchanges of the group use the same object again, so that they allocate no memory.
struct Pieces {
  std::vector<Piece> incoming, outgoing;
};

class Exchange {
 public:
  // Plan the blocks that this rank gives and takes, from the call of this rank. add_peers()
  // completes the plan with the calls of the peers.
  Exchange(const Group& group, const TaskHead& task, const Collective& collective, Pieces& pieces);

  // Return true if this rank takes nothing from other ranks.
  bool takes_nothing() const noexcept { return !takes_any_; }
  // Return the size in bytes of the root's source in a broadcast or a scatter, and of this rank's
  // source in other collectives. If all blocks have one size, the sources of all ranks that give
  // blocks have this size.
  std::uint64_t source_bytes() const noexcept { return source_bytes_; }
  // Return true if this rank's published call allows the cooperative algorithm.
  bool may_be_cooperative() const noexcept { return may_be_cooperative_; }

  // After this rank has written its record for the peers, call publish_inline() if the record has
  // the data of the source, or publish_operands() if it has the operands' offsets. Both functions
  // determine how many chunks this rank copies to its staging buffers for its peers.
  void publish_inline() noexcept { out_chunks_ = 0; }
  void publish_operands(const Group& group, TaskHead& task) noexcept;

  // Call this when all ranks have arrived. Find in the peers' calls where their blocks are, and how
  // many chunks this rank takes.
  void add_peers(const Group& group, const TaskHead& task);

  // Call this before all ranks have arrived: fill staging buffers, and copy this rank's own block.
  void start_early(Context& context) { advance(context); }
  // Continue as far as possible. Return true if the collective is complete on this rank.
  bool advance(Context& context);
  // Return the number of chunks that this rank copies to its staging buffers; 0 if it needs none.
  std::uint64_t num_staged_chunks() const noexcept { return out_chunks_; }

 private:
  class Pass;  // the work of one call of advance()

  Pieces* pieces_;
  bool is_in_place_ = false;         // an all_to_all whose source and destination are one array
  bool may_be_cooperative_ = false;  // this rank's call allows the algorithm of cooperative.hpp
  bool takes_any_ = false;           // this rank takes something from other ranks
  bool shares_source_ = false;       // the peers read the source of this rank directly
  bool must_report_taken_ = false;   // peers may wait until this rank reports that it reads no more
  bool has_placed_own_ = false;      // place_all_own() (exchange.cpp) was called
  bool has_staged_input_ = false;    // this rank takes chunks from staging buffers of peers
  bool awaits_reports_ = false;      // all data are copied, the reports of peers are missing
  std::uint64_t source_bytes_ = 0;
  std::uint64_t out_chunks_ = 0;  // the number of chunks that this rank fills for its peers
  std::uint64_t filled_ = 0;      // the number of chunks that this rank has filled for its peers
  std::uint64_t in_chunks_ = 0;   // the number of chunks that this rank takes from its peers
  std::uint64_t taken_ = 0;       // the number of chunks that this rank has taken from its peers
  int producer_ = 0;              // the rank from which this rank takes its next chunk
};

}  // namespace ngd::comm::shm
