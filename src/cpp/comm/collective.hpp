// SPDX-License-Identifier: Apache-2.0
// ONE descriptor for every collective, whoever runs it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
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

// What stands in a rank's source or destination: `count` elements, its own block, or a block of
// each rank.
enum class Part : std::uint8_t { Nothing, Whole, Block, Blocks };
enum class Role : std::uint8_t { None, Source, Destination };

// A row of the table of kinds.
struct Row {
  std::string_view name;
  Part source, destination;
  Role of_root = Role::None;  // what the root alone has
  bool reduces = false;
  bool between_two = false;  // no part of the common sequence
};

inline constexpr std::array<Row, 11> kKinds{
    {{"all_reduce", Part::Whole, Part::Whole, Role::None, true},
     {"reduce_scatter", Part::Blocks, Part::Block, Role::None, true},
     {"all_gather", Part::Block, Part::Blocks},
     {"broadcast", Part::Whole, Part::Whole, Role::Source},
     {"reduce", Part::Whole, Part::Whole, Role::Destination, true},
     {"gather", Part::Block, Part::Blocks, Role::Destination},
     {"scatter", Part::Blocks, Part::Block, Role::Source},
     {"all_to_all", Part::Blocks, Part::Blocks},
     {"send", Part::Whole, Part::Nothing, Role::None, false, true},
     {"recv", Part::Nothing, Part::Whole, Role::None, false, true},
     {"barrier", Part::Nothing, Part::Nothing}}};
constexpr const Row& row_of(Kind kind) noexcept { return kKinds[static_cast<std::size_t>(kind)]; }

enum class ReduceOp : std::uint8_t { None, Sum, Mean, Min, Max, Prod };

enum class Algorithm : std::uint8_t { Auto, Flat, Ring };

// What a rank's compiled program says of all its collectives; rides in the first one of every call.
struct ProgramIdentity {
  std::uint64_t hash = 0;  // of the sequence of collectives; 0 = eager
  // For the message: one line a collective with its call site; an empty one; which program it is.
  const char* text = nullptr;
  std::uint64_t computation = 0;  // of what it computes (computations.hpp)
};

// What it says of the collectives in one of its branches, which are numbered from 1; 0 = in none. A
// rank that has not taken the branch is told so, and does not take them for others.
ProgramIdentity in_branch(ProgramIdentity program, std::uint64_t branch) noexcept;

// What moves is a row of blocks of elements, end to end, or `count` elements (kKinds). A block has
// `count` elements, too, or rank r's as many as counts[r] says; of an all_to_all counts[r] are
// those of my block for rank r, and receive_counts[r] those of rank r's block for me.
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
  // "train.py:42", or "join() at train.py:42" for a collective that ngd makes in a public call.
  // Carried for messages, never compared.
  const char* site = "";
};

std::string_view name_of(Kind kind) noexcept;      // "all_reduce"
std::string_view name_of(ReduceOp op) noexcept;    // "mean"
Kind kind_named(std::string_view name);            // throws InvalidArgument
ReduceOp reduce_op_named(std::string_view name);   // throws InvalidArgument
Algorithm algorithm_named(std::string_view name);  // throws InvalidArgument
Algorithm preferred_algorithm();                   // NGD_ALLREDUCE's; throws the same

constexpr bool reduces(Kind kind) noexcept { return row_of(kind).reduces; }
constexpr bool has_root(Kind kind) noexcept { return row_of(kind).of_root != Role::None; }
// Made of a block a rank, which `counts` may make uneven.
constexpr bool has_blocks(Kind kind) noexcept { return row_of(kind).source >= Part::Block; }
constexpr bool between_two(Kind kind) noexcept { return row_of(kind).between_two; }

// How many elements `rank`'s source and destination hold: 0 where it has none.
std::uint64_t source_elements(const Collective& collective, int rank, int size) noexcept;
std::uint64_t destination_elements(const Collective& collective, int rank, int size) noexcept;

// Throws InvalidArgument for what no communicator does: an integer mean, a sum of bools, a root
// outside [0, size), a reduction without an op, a send to oneself, counts where none belong.
void validate(const Collective& collective, int rank, int size);

// "all_reduce(mean) of 512 float32", plus " at train.py:42" when the site is known. The site alone
// for a collective that ngd makes in a public call.
std::string describe(const Collective& collective);

// "join() at " of a site "join() at train.py:42", "ngd.init()" of that; empty for a user's line.
constexpr std::string_view public_call(std::string_view site) noexcept {
  constexpr std::string_view kName =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.";
  constexpr std::string_view kCall = "()", kAt = "() at ";
  const std::size_t end = std::min(site.find_first_not_of(kName), site.size());
  const std::string_view rest = site.substr(end);
  if (end > 0 && rest == kCall) return site;
  return end > 0 && rest.starts_with(kAt) ? site.substr(0, end + kAt.size()) : site.substr(0, 0);
}

}  // namespace ngd::comm
