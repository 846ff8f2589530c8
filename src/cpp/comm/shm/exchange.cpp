// SPDX-License-Identifier: Apache-2.0
// The exchange: broadcast, all_gather, gather, scatter, all_to_all and reduce_scatter are one
// algorithm. For each ordered pair of ranks, a producer and a consumer, there is a block (Piece).
// The consumer takes the block: it copies the block to its destination. In a reduce_scatter, the
// consumer reduces the blocks of all producers, in the canonical order (base/reduce.hpp).
//
// A producer's record of the collective in shared memory (Slot::source_offset) shows where a
// consumer finds its block:
//   inline   next to the record, if source and counts together have at most kInlineBytes;
//   shared   in the source itself, which is in the shared arena. The producer may reuse the source
//            when all ranks have reported that they take no more (Slot::taken = kAll);
//   staged   in the producer's staging buffers (staging.hpp), one chunk at a time. A chunk holds a
//            part of the block of every consumer, so that all consumers can copy at the same time.
//            If all consumers get the same block, a chunk holds it once. A producer sets its flag
//            Slot::step to the number of chunks that it has filled. A consumer sets its flag
//            Slot::taken to the number of chunks that it has taken from all its producers.
// A rank has kBuffers staging buffers. So a producer fills chunk c + kBuffers only after all
// consumers have taken chunk c. A consumer takes chunk c only after all its producers have filled
// chunk c. A rank alternates: it fills a chunk if it can, then takes a chunk if it can.
//
// Deadlocks are impossible. To prove it, put all fillings and takings of all ranks in one order: an
// earlier collective first, in a collective an earlier chunk first, and for a chunk the fillings
// first. Each filling or taking waits only for earlier ones in this order. So the earliest one that
// is not done can always be done.
//
// In an all_to_all in place, source and destination are the same array, and all blocks are equal.
// Chunk c of the block from a peer overwrites chunk c of this rank's block for that peer. So a rank
// takes chunk c only after it has copied its own chunk c to a staging buffer, and no rank reads
// another rank's source. If the calls of all ranks allow it, an all_to_all in place or a large
// broadcast uses the algorithm of cooperative.cpp instead of the exchange.
#include "comm/shm/exchange.hpp"

#include <algorithm>
#include <cstring>

#include "base/bits.hpp"
#include "base/error.hpp"
#include "comm/messages.hpp"
#include "comm/shm/cooperative.hpp"
#include "comm/shm/copy.hpp"
#include "comm/shm/inline.hpp"

namespace ngd::comm::shm {

namespace {

constexpr std::size_t kChunkBytes = 512 << 10;
static_assert(kChunkBytes <= kBufferBytes);
static_assert(kMaxRanks * sizeof(std::uint64_t) <= kInlineBytes);

// Return true if a rank that gives blocks (producer) gives the same block to all ranks that take
// one (consumers).
bool gives_one_block(Kind kind) {
  return kind == Kind::AllGather || kind == Kind::Gather || kind == Kind::Broadcast;
}

// Return the largest size of a share, in bytes. A share is the part of a chunk that one consumer
// takes.
std::uint64_t share_of(Kind kind, int ranks) {
  if (gives_one_block(kind) || ranks <= 2) return kChunkBytes;
  return kChunkBytes / static_cast<std::uint64_t>(ranks - 1) / kLine * kLine;
}

// Return the offset of a consumer's share in a chunk of `producer`, in bytes from the beginning of
// the chunk. A share is the part of a chunk that one consumer takes.
std::uint64_t share_at(Kind kind, int ranks, int producer, int consumer) {
  if (gives_one_block(kind)) return 0;
  const auto index = static_cast<std::uint64_t>(consumer < producer ? consumer : consumer - 1);
  return index * share_of(kind, ranks);
}

// The blocks of one operand, one block per rank (comm::Blocks), with offsets and sizes in bytes
// instead of elements.
class ByteBlocks {
 public:
  ByteBlocks(const std::uint64_t* counts, std::uint64_t count, std::size_t element)
      : blocks_(counts, count), element_(element) {}
  std::uint64_t bytes(int rank) const { return blocks_.count(rank) * element_; }
  std::uint64_t begin(int rank) const { return blocks_.begin(rank) * element_; }

 private:
  Blocks blocks_;
  std::size_t element_;
};

}  // namespace

class Exchange::Pass {
 public:
  Pass(Context& context, Exchange& state)
      : group_(context.group),
        staging_(context.staging),
        task_(context.task),
        state_(state),
        ranks_(group_.size()),
        share_(share_of(task_.kind, ranks_)) {}

  // Fill and take chunks until neither is possible. Return true if the exchange is complete on this
  // rank.
  bool advance() {
    for (bool has_progressed = true; has_progressed;) {
      has_progressed = fill();
      if (!state_.has_placed_own_) place_all_own();
      if (task_.has_arrived && take()) has_progressed = true;
    }
    return task_.has_arrived && state_.taken_ == state_.in_chunks_ &&
           state_.filled_ == state_.out_chunks_ && (!state_.shares_source_ || all_have_taken());
  }

 private:
  // Copy the next chunk for all consumers to a staging buffer, and raise Slot::step. Return false
  // if no chunk is left, or if this rank must wait for a buffer.
  bool fill() {
    if (state_.filled_ == state_.out_chunks_ || !task_.staging.is_granted) return false;
    const std::uint64_t ticket = task_.staging.first + state_.filled_;
    if (!staging_.is_free(group_, ticket)) {
      if (task_.has_arrived) task_.need = staging_.guard(ticket);
      return false;
    }
    std::byte* chunk = buffer_of(group_.mine(), ticket);
    for (int r = 0; r < ranks_; ++r) {
      if (r == group_.rank()) continue;
      const Piece& piece = state_.pieces_->outgoing[static_cast<std::size_t>(r)];
      const auto [begin, bytes] = cut(piece, state_.filled_, share_);
      if (bytes == 0) continue;
      std::memcpy(chunk + share_at(task_.kind, ranks_, group_.rank(), r),
                  task_.source + piece.source + begin, bytes);
      if (gives_one_block(task_.kind)) {
        // Copy these bytes to this rank's own destination too, while they are in the cache.
        place_own(begin, bytes);
        break;
      }
    }
    ++state_.filled_;
    task_.staging.has_ended = state_.filled_ == state_.out_chunks_;
    staging_.guard_until_taken(group_, ticket, task_.sequence, state_.filled_);
    group_.raise_step(task_.sequence, state_.filled_);
    return true;
  }

  // Copy this rank's own block from its source to its destination, which needs no peer. Do nothing
  // in a reduce_scatter, where take() reduces the block. Do nothing if the peers get the same block
  // through this rank's staging buffers: fill() then copies the block chunk by chunk, while the
  // data are in the cache. An all_gather of 64 MiB (2 ranks, AMD EPYC 9005) takes 5.0 ms if fill()
  // copies the own block, and 5.6 ms if this function does.
  void place_all_own() {
    state_.has_placed_own_ = true;
    if (gives_one_block(task_.kind) && state_.out_chunks_ > 0) return;
    if (task_.kind == Kind::ReduceScatter) return;
    place_own(0, piece_of(group_.rank()).bytes);
  }

  // Copy a part of this rank's own block to its destination. `begin`: its offset in the block.
  void place_own(std::uint64_t begin, std::uint64_t bytes) {
    const Piece& own_piece = piece_of(group_.rank());
    if (own_piece.bytes == 0) return;
    const std::byte* from = task_.source + own_piece.source + begin;
    std::byte* to = task_.destination + own_piece.destination + begin;
    if (from != to) copy_piece(to, from, bytes, own_piece.bytes);
  }

  // Take the next chunk of each producer (a rank that gives this rank a block), and report it in
  // Slot::taken. Return false if no chunk is left, or if this rank must wait. After a wait, call
  // this function again: it continues with the same chunk.
  bool take() {
    if (state_.taken_ == state_.in_chunks_) return false;
    if (state_.is_in_place_ && state_.taken_ == state_.filled_ &&
        state_.filled_ < state_.out_chunks_)
      return false;
    for (; state_.producer_ < ranks_; ++state_.producer_) {
      const int producer = state_.producer_;
      if (producer == group_.rank()) continue;
      if (is_staged(producer)) {
        const auto [begin, bytes] = cut(piece_of(producer), state_.taken_, share_);
        if (bytes == 0) continue;
        task_.need = group_.one_step(task_.sequence, producer, state_.taken_ + 1);
        if (!group_.met(task_.need)) return false;
      }
      if (task_.kind != Kind::ReduceScatter) copy(producer);
    }
    if (task_.kind == Kind::ReduceScatter) combine();
    state_.producer_ = 0;
    if (++state_.taken_ < state_.in_chunks_)
      group_.raise_taken(task_.sequence, state_.taken_);
    else if (state_.must_report_taken_)
      group_.raise_taken(task_.sequence, kAll);
    return true;
  }

  // Copy the next chunk from a producer to the destination. A block that needs no staging buffer is
  // copied whole, except in an exchange in place.
  void copy(int producer) {
    const Piece& piece = piece_of(producer);
    const bool from_staging = is_staged(producer),
               is_read_whole = !from_staging && !state_.is_in_place_;
    const auto [begin, bytes] = cut(piece, state_.taken_, is_read_whole ? piece.bytes : share_);
    if (bytes == 0) return;
    const std::byte* from = from_staging ? chunk_of(producer) : piece.direct + begin;
    copy_piece(task_.destination + piece.destination + begin, from, bytes, piece.bytes);
  }

  // Reduce the next chunk of the block that each rank gives this rank (reduce_scatter), and write
  // the result to the destination.
  void combine() {
    const Piece& own_piece = piece_of(group_.rank());
    const auto [begin, bytes] =
        cut(own_piece, state_.taken_, state_.has_staged_input_ ? share_ : own_piece.bytes);
    for (int p = 0; p < ranks_; ++p)
      group_.sources()[p] = is_staged(p) ? chunk_of(p) : piece_of(p).direct + begin;
    reduce(combine_of(task_.op), task_.dtype, group_.sources(), ranks_, task_.destination + begin,
           bytes / size_of(task_.dtype), divisor_of(task_.op, ranks_));
  }

  // Return true if all peers have reported that they do not read this rank's source any more.
  bool all_have_taken() {
    if (!state_.awaits_reports_) {
      state_.awaits_reports_ = true;
      task_.need = group_.all(Need::Flag::Taken, task_.sequence, kAll);
    }
    return group_.met(task_.need);
  }

  struct Cut {
    std::uint64_t begin, bytes;
  };
  // Return the range of bytes of the block `piece` that chunk number `chunk` has. `share` is the
  // number of bytes of the block per chunk; the last chunk may have fewer.
  static Cut cut(const Piece& piece, std::uint64_t chunk, std::uint64_t share) {
    const std::uint64_t begin = std::min(chunk * share, piece.bytes);
    return {begin, std::min(share, piece.bytes - begin)};
  }
  // Return the block that this rank takes from `producer`, which may be this rank itself.
  const Piece& piece_of(int producer) const {
    return state_.pieces_->incoming[static_cast<std::size_t>(producer)];
  }
  // Return true if this rank takes the data of `producer` from the staging buffers of `producer`.
  bool is_staged(int producer) const {
    return piece_of(producer).direct == nullptr && piece_of(producer).bytes > 0;
  }
  // Return the address, in the staging buffer of `producer`, of the share that this rank takes
  // next. A share is the part of a chunk that one rank takes.
  const std::byte* chunk_of(int producer) const {
    const Segment& segment = group_.segment(producer);
    return buffer_of(segment, segment.slot(task_.sequence).first_ticket + state_.taken_) +
           share_at(task_.kind, ranks_, producer, group_.rank());
  }

  Group& group_;
  Staging& staging_;
  TaskHead& task_;
  Exchange& state_;
  int ranks_;
  std::uint64_t share_;
};

bool Exchange::advance(Context& context) { return Pass(context, *this).advance(); }

namespace {

// Return the address of a producer's block for this rank if the block can be read without a staging
// buffer, otherwise null.
const std::byte* direct_of(const Group& group, const TaskHead& task, std::uint64_t source_bytes,
                           int producer, const Piece& piece) {
  const Segment& segment = group.segment(producer);
  const Slot& slot = segment.slot(task.sequence);
  const bool is_in_place =
      task.kind == Kind::AllToAll && slot.source_offset == slot.destination_offset;
  if (slot.source_offset == kPrivate || is_in_place) return nullptr;
  if (slot.source_offset != kInline) return segment.at(slot.source_offset) + piece.source;
  return inline_payload(segment, task.sequence, source_bytes, task.counts_bytes(group.size())) +
         piece.source;
}

// Check the counts of an all_to_all: the number of elements that `producer` gives must be the
// number that this rank expects. Set the offset of the block in the producer's source.
void add_counts(const Group& group, const TaskHead& task, int producer, Piece& piece) {
  const int me = group.rank();
  const auto* counts =
      reinterpret_cast<const std::uint64_t*>(group.segment(producer).payload(task.sequence));
  const std::size_t element = size_of(task.dtype);
  if (counts[me] * element != piece.bytes)
    fail_of({group.job_rank(producer), group.job_rank(me)}, ErrorKind::CollectiveMismatch,
            mismatch_of_counts(
                group.where(),
                {group.job_rank(producer), comm::describe(group.call(task.sequence, producer))},
                counts[me], {group.job_rank(me), comm::describe(group.call(task.sequence, me))},
                piece.bytes / element));
  piece.source = ByteBlocks(counts, 0, element).begin(me);
}

}  // namespace

Exchange::Exchange(const Group& group, const TaskHead& task, const Collective& collective,
                   Pieces& pieces)
    : pieces_(&pieces),
      is_in_place_(task.kind == Kind::AllToAll && !task.has_counts &&
                   task.source == task.destination) {
  const int ranks = group.size(), me = group.rank();
  const std::size_t element = size_of(task.dtype);
  const ByteBlocks source_blocks(collective.counts, task.count, element);
  const ByteBlocks destination_blocks(
      task.kind == Kind::AllToAll ? collective.receive_counts : collective.counts, task.count,
      element);
  const bool all_produce = task.kind != Kind::Broadcast && task.kind != Kind::Scatter;
  const bool all_consume = task.kind != Kind::Gather;
  const bool is_one_block = gives_one_block(task.kind);
  source_bytes_ = source_elements(collective, all_produce ? me : task.root, ranks) * element;
  pieces.incoming.assign(static_cast<std::size_t>(ranks), Piece{});
  pieces.outgoing.assign(static_cast<std::size_t>(ranks), Piece{});
  for (int r = 0; r < ranks; ++r) {
    Piece& in = pieces.incoming[static_cast<std::size_t>(r)];
    Piece& out = pieces.outgoing[static_cast<std::size_t>(r)];
    if ((all_produce || me == task.root) && (all_consume || r == task.root))
      out = is_one_block ? Piece{0, source_blocks.bytes(me)}
                         : Piece{source_blocks.begin(r), source_blocks.bytes(r)};
    if ((all_consume || me == task.root) && (all_produce || r == task.root)) {
      if (task.kind == Kind::AllGather || task.kind == Kind::Gather)
        in = {0, destination_blocks.bytes(r), destination_blocks.begin(r)};
      else if (task.kind == Kind::AllToAll)
        in = {source_blocks.begin(me), destination_blocks.bytes(r), destination_blocks.begin(r)};
      else
        in = {is_one_block ? 0 : source_blocks.begin(me), source_blocks.bytes(me)};
    }
    if (r == me) continue;
    takes_any_ |= in.bytes > 0;
    out_chunks_ = std::max(out_chunks_, divide_up(out.bytes, share_of(task.kind, ranks)));
  }
}

void Exchange::publish_operands(const Group& group, TaskHead& task) noexcept {
  may_be_cooperative_ = Cooperative::suits(group, task, group.rank());
  const bool is_shared =
      group.mine().slot(task.sequence).source_offset != kPrivate && !is_in_place_;
  shares_source_ = out_chunks_ > 0 && is_shared;
  task.staging.is_needed = out_chunks_ > 0 && !is_shared;
  if (!task.staging.is_needed) out_chunks_ = 0;
}

void Exchange::add_peers(const Group& group, const TaskHead& task) {
  const int me = group.rank();
  for (int p = 0; p < group.size(); ++p) {
    Piece& piece = pieces_->incoming[static_cast<std::size_t>(p)];
    if (task.has_counts && task.kind == Kind::AllToAll) add_counts(group, task, p, piece);
    if (p == me) {
      piece.direct = task.source + piece.source;
      continue;
    }
    must_report_taken_ |= group.segment(p).slot(task.sequence).source_offset != kInline;
    if (piece.bytes == 0) continue;
    piece.direct = direct_of(group, task, source_bytes_, p, piece);
    const bool is_staged = piece.direct == nullptr, is_whole = !is_staged && !is_in_place_;
    has_staged_input_ |= is_staged;
    in_chunks_ = std::max(in_chunks_,
                          is_whole ? 1 : divide_up(piece.bytes, share_of(task.kind, group.size())));
  }
  if (task.kind == Kind::ReduceScatter && pieces_->incoming[0].bytes > 0 && in_chunks_ == 0)
    in_chunks_ = 1;  // a group of one rank: take() must reduce this rank's own block
}

}  // namespace ngd::comm::shm
