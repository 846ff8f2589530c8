// SPDX-License-Identifier: Apache-2.0
// The description of a collective. It has the same form for all kinds of communicators: for one
// rank, over shared memory and over MPI.
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

// The contents of the array that a rank gives (source) or gets (destination). Nothing: no array.
// Whole: `count` elements. Block: the block of this rank. Blocks: one block per rank, end to end.
enum class Part : std::uint8_t { Nothing, Whole, Block, Blocks };
enum class Role : std::uint8_t { None, Source, Destination };

// An entry of kKinds, the table of the kinds of collectives. It has the name of a kind and the
// contents of its source and destination. It shows if the kind has a root, if it reduces, and if it
// is between two ranks.
struct Row {
  std::string_view name;
  Part source, destination;
  Role of_root = Role::None;  // the array that only the root has; None: there is no root
  bool reduces = false;
  bool between_two = false;  // a send or a receive, which only two ranks call
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

// The identity of the compiled step that calls a collective. The ranks compare it, so that a rank
// that calls another step gets a CollectiveMismatch. A step gives its identity to all its
// collectives except sends and receives.
struct ProgramIdentity {
  // A hash of the collectives of the compiled step; 0: the call is not part of a step.
  std::uint64_t hash = 0;
  // The text for error messages: one line per collective of the step with its call site, an empty
  // line, and the name of the step.
  const char* text = nullptr;
  std::uint64_t computation = 0;  // a hash of all that the step computes (computations.hpp)
};

// Return the identity of a compiled step, `program`, changed for the collectives in one branch of
// the step. Branches are numbered from 1; for 0 (no branch), `program` is returned unchanged. The
// identities of two branches differ. So ranks that take different branches get a
// CollectiveMismatch, even if the collectives of the branches look the same.
ProgramIdentity in_branch(ProgramIdentity program, std::uint64_t branch) noexcept;

// The operands of a collective. Depending on the kind (kKinds), a source or destination has `count`
// elements, one block, or one block per rank, end to end. A block has `count` elements; if `counts`
// is not null, rank r's block has counts[r] elements. In an all_to_all, counts[r] is the size of
// this rank's block for rank r, and receive_counts[r] is the size of rank r's block for this rank.
//
// The source and the destination may be the same memory if both have `count` elements, and in an
// all_to_all without counts. Each rank may choose this for itself: some ranks may use the same
// memory, other ranks different memory. In all_gather and gather, the source may be this rank's
// block of the destination. In reduce_scatter and scatter, the destination may be this rank's block
// of the source. Otherwise they must not overlap.
struct Collective {
  Kind kind = Kind::Barrier;
  ReduceOp op = ReduceOp::None;
  DType dtype = DType::U8;
  std::uint64_t count = 0;  // the number of elements of the array, or of one block
  int root = 0;             // the root's rank; of a send or a receive: the other rank
  // The tag of a send or a receive. It is only compared: a send and the receive that gets its data
  // must have the same tag. It does not select which message is received.
  int tag = 0;
  const void* source = nullptr;
  void* destination = nullptr;
  // `counts` and `receive_counts` have the number of elements of each rank's block. Null: all
  // blocks have `count` elements. submit() reads both arrays; the caller may free them when
  // submit() has returned.
  const std::uint64_t* counts = nullptr;
  const std::uint64_t* receive_counts = nullptr;
  // The shape of the array, or the dtype, size and shape of each array of a list. Null: a plain
  // sequence of elements. Only submit() reads it.
  const Layout* layout = nullptr;
  Algorithm algorithm = Algorithm::Auto;
  const ProgramIdentity* program = nullptr;
  // "train.py:42", or "join() at train.py:42" for a collective that ngd itself calls in a public
  // function. Error messages show it; the ranks do not compare it.
  const char* site = "";
};

std::string_view name_of(Kind kind) noexcept;      // such as "all_reduce"
std::string_view name_of(ReduceOp op) noexcept;    // such as "mean"
Kind kind_named(std::string_view name);            // throws InvalidArgument for an unknown name
ReduceOp reduce_op_named(std::string_view name);   // throws InvalidArgument for an unknown name
Algorithm algorithm_named(std::string_view name);  // throws InvalidArgument for an unknown name
Algorithm preferred_algorithm();  // from NGD_ALLREDUCE; throws InvalidArgument for an unknown name

constexpr bool reduces(Kind kind) noexcept { return row_of(kind).reduces; }
// Return true if this kind has a root, such as broadcast. Return false for a send and a receive:
// their `root` is only the other rank.
constexpr bool has_root(Kind kind) noexcept { return row_of(kind).of_root != Role::None; }
// Return true if the source consists of one block or of one block per rank. Only these kinds accept
// `counts`, the sizes of the blocks.
constexpr bool has_blocks(Kind kind) noexcept { return row_of(kind).source >= Part::Block; }
// Return true for a send and a receive.
constexpr bool between_two(Kind kind) noexcept { return row_of(kind).between_two; }

// source_elements() returns the number of elements in the source of `rank`: the sum over all its
// blocks. destination_elements() returns the same for the destination. Both return 0 if `rank` has
// no such array: for example, only the root of a scatter has a source.
std::uint64_t source_elements(const Collective& collective, int rank, int size) noexcept;
std::uint64_t destination_elements(const Collective& collective, int rank, int size) noexcept;

// Throw InvalidArgument or DType for a collective that no communicator can run: a mean of integers,
// a sum of bools, a root outside of [0, size), a reduction without an op, a send to the rank
// itself, counts for a kind without blocks.
void validate(const Collective& collective, int rank, int size);

// Return the text for messages: "all_reduce(mean) of 512 float32", and " at train.py:42" if the
// site is known. For a collective that ngd itself calls in a public function, the text is only the
// site: "join() at train.py:42".
std::string describe(const Collective& collective);

// Return the prefix of a site that names a public function of ngd: "join() at " for "join() at
// train.py:42", "ngd.init()" for "ngd.init()". Return "" for a site without such a prefix, such as
// "train.py:42".
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
