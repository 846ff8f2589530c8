// SPDX-License-Identifier: Apache-2.0
// Broadcast, all_gather, gather, scatter, all_to_all and reduce_scatter: each rank pulls its blocks
// from the ranks that have them.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/shm/context.hpp"

namespace ngd::comm::shm {

// A block that one rank, the producer, gives another rank, the consumer. Offsets are in bytes.
struct Piece {
  std::uint64_t source = 0;  // in the producer's source
  std::uint64_t bytes = 0;
  std::uint64_t destination = 0;      // in the consumer's destination
  const std::byte* direct = nullptr;  // where it can be read without a staging buffer
};

// By rank: the pieces that I take from it and give it. They stay with a slot, so that exchanges
// that use it again ask for no memory.
struct Pieces {
  std::vector<Piece> incoming, outgoing;
};

class Exchange {
 public:
  // Plan what I give and take, as far as my own call says it.
  Exchange(const Group& group, const TaskHead& task, const Collective& collective, Pieces& pieces);

  // Return true if I take nothing from other ranks.
  bool takes_nothing() const noexcept { return !takes_any_; }
  // The bytes of a producer's source, where all blocks are equal.
  std::uint64_t source_bytes() const noexcept { return source_bytes_; }
  bool may_be_cooperative() const noexcept { return may_be_cooperative_; }

  // My slot has my payload, or the offsets of my operands.
  void publish_inline() noexcept { out_chunks_ = 0; }
  void publish_operands(const Group& group, TaskHead& task) noexcept;

  // All ranks have arrived: add what the peers' calls say.
  void add_peers(const Group& group, const TaskHead& task);

  void start_early(Context& context) { advance(context); }
  bool advance(Context& context);
  std::uint64_t num_staged_chunks() const noexcept { return out_chunks_; }

 private:
  class Pass;  // one call of advance()

  Pieces* pieces_;
  bool is_in_place_ = false;            // what I take is stored where what I give was
  bool may_be_cooperative_ = false;  // as far as my own call says
  bool takes_any_ = false;               // I take something from other ranks
  bool shares_source_ = false;              // the peers read my source in place
  bool must_report_taken_ = false;   // some peers wait until I have read their source
  bool has_placed_own_ = false;            // my own block is in its place
  bool has_staged_input_ = false;          // some of what I take is staged
  bool awaits_reports_ = false;      // all my work is done; peers still read my source
  std::uint64_t source_bytes_ = 0;
  std::uint64_t out_chunks_ = 0;  // that pass through my staging buffers
  std::uint64_t filled_ = 0;      // the number of these that I have filled
  std::uint64_t in_chunks_ = 0;   // that I take from my peers
  std::uint64_t taken_ = 0;       // the number of these that I have taken
  int producer_ = 0;              // whose part of the next one I take next
};

}  // namespace ngd::comm::shm
