// SPDX-License-Identifier: Apache-2.0
// ONE descriptor for every collective, whoever runs it.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/dtype.hpp"
#include "comm/layout.hpp"

namespace ngd::comm {

enum class Kind : std::uint8_t {
  AllReduce,
  ReduceScatter,
  AllGather,
  Broadcast,
  Reduce,
  Gather,
  Scatter,
  AllToAll,
  Send,
  Receive,
  Barrier
};

inline constexpr int kKinds = 11;

enum class ReduceOp : std::uint8_t { None, Sum, Mean, Min, Max, Prod };

enum class Algorithm : std::uint8_t { Auto, Flat, Ring };

// What a rank's compiled program says of all its collectives; rides in the first one of every call.
struct ProgramIdentity {
  std::uint64_t hash = 0;  // of the sequence of collectives; 0 = eager
  // For the message: one line a collective with its call site; an empty one; which program it is.
  const char* text = nullptr;
  std::uint64_t computation = 0;  // of what it computes (computations.hpp)
};

// What moves. Every rank's part of a collective is a row of blocks of elements, end to end; the
// block of an exchange between two ranks has `count` elements, or as many as `counts` says:
//
//   kind             source                    destination               counts[r], if given
//   all_reduce       count                     count                     -
//   reduce_scatter   a block for each rank     my block, reduced         of rank r's block
//   all_gather       my block                  a block of each rank      of rank r's block
//   broadcast        count (root)              count                     -
//   reduce           count                     count (root)              -
//   gather           my block                  a block of each (root)    of rank r's block
//   scatter          a block for each (root)   my block                  of rank r's block
//   all_to_all       a block for each rank     a block of each rank      of my block for rank r;
//   and
//                                              receive_counts[r]: of rank r's block for me
//   send, receive    count / -                 - / count                 -
//
// source and destination may be the same where both have `count` elements, and in an all_to_all
// without counts, on all ranks or on some; in all_gather and gather the source may be its own block
// of the destination, in reduce_scatter and scatter the destination its own block of the source.
// Otherwise they do not overlap.
struct Collective {
  Kind kind = Kind::Barrier;
  ReduceOp op = ReduceOp::None;
  DType dtype = DType::U8;
  std::uint64_t count = 0;  // elements; see above
  int root = 0;             // of a send or a receive: the other rank
  int tag = 0;              // of a send or a receive: compared, not searched for
  const void* source = nullptr;
  void* destination = nullptr;
  // size() numbers each, or null: all blocks have `count` elements. Read in submit() only.
  const std::uint64_t* counts = nullptr;
  const std::uint64_t* receive_counts = nullptr;
  const Layout* layout = nullptr;  // null: a row. Read in submit() only
  Algorithm algorithm = Algorithm::Auto;
  const ProgramIdentity* program = nullptr;
  const char* site = "";  // "train.py:42": carried for messages, never compared
};

std::string_view name_of(Kind kind) noexcept;      // "all_reduce"
std::string_view name_of(ReduceOp op) noexcept;    // "mean"
Kind kind_named(std::string_view name);            // throws InvalidArgument
ReduceOp reduce_op_named(std::string_view name);   // throws InvalidArgument
Algorithm algorithm_named(std::string_view name);  // throws InvalidArgument
Algorithm preferred_algorithm();                   // NGD_ALLREDUCE's; throws the same

constexpr bool reduces(Kind kind) noexcept {
  return kind == Kind::AllReduce || kind == Kind::ReduceScatter || kind == Kind::Reduce;
}
constexpr bool has_root(Kind kind) noexcept {
  return kind == Kind::Broadcast || kind == Kind::Reduce || kind == Kind::Gather ||
         kind == Kind::Scatter;
}
// Made of a block a rank, which `counts` may make uneven.
constexpr bool has_blocks(Kind kind) noexcept {
  return kind == Kind::ReduceScatter || kind == Kind::AllGather || kind == Kind::Gather ||
         kind == Kind::Scatter || kind == Kind::AllToAll;
}
// Between two ranks: no part of the common sequence.
constexpr bool between_two(Kind kind) noexcept {
  return kind == Kind::Send || kind == Kind::Receive;
}

// How many elements `rank`'s source and destination hold: 0 where it has none.
std::uint64_t source_elements(const Collective& collective, int rank, int size) noexcept;
std::uint64_t destination_elements(const Collective& collective, int rank, int size) noexcept;

// Throws InvalidArgument for what no communicator does: an integer mean, a sum of bools, a root
// outside [0, size), a reduction without an op, a send to oneself, counts where none belong.
void validate(const Collective& collective, int rank, int size);

// "all_reduce(mean) of 512 float32", plus " at train.py:42" when the site is known.
std::string describe(const Collective& collective);

}  // namespace ngd::comm
