// SPDX-License-Identifier: Apache-2.0
// The properties of a collective that must be equal on all ranks. Every communicator publishes them
// in the same form, compares them with the same functions, and reports a difference in the same
// words.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/dtype.hpp"
#include "comm/collective.hpp"
#include "comm/computations.hpp"
#include "comm/layout.hpp"
#include "comm/messages.hpp"

namespace ngd::comm {

struct Identity {
  std::uint64_t count = 0;         // elements; 0 for a barrier, or if each block has its own size
  std::uint64_t counts_hash = 0;   // 0 if all blocks have `count` elements
  std::uint64_t layout_hash = 0;   // a hash of the shapes; 0: a plain sequence of elements
  std::uint64_t program_hash = 0;  // 0: not in a compiled step
  std::int32_t root = 0;           // the root; Send: the receiving rank; Recv: the sending rank
  Kind kind = Kind::Barrier;
  ReduceOp op = ReduceOp::None;
  DType dtype = DType::U8;
  Algorithm algorithm = Algorithm::Flat;

  bool operator==(const Identity&) const noexcept = default;
  // Return a hash of all properties. `seed` is different for each group, so that the hashes of two
  // groups differ. The hashes of the layout and of the compiled step are combined by xor. This
  // loses nothing, because one of them is always 0: a call in a compiled step has no layout, and
  // any other call has no step.
  std::uint64_t hash(std::uint64_t seed) const noexcept {
    const std::uint64_t small =
        static_cast<std::uint64_t>(kind) | static_cast<std::uint64_t>(op) << 8 |
        static_cast<std::uint64_t>(dtype) << 16 | static_cast<std::uint64_t>(algorithm) << 24 |
        static_cast<std::uint64_t>(root) << 32;
    return mix(mix(mix(seed, small), count ^ counts_hash), program_hash ^ layout_hash);
  }
};

// The record that a rank publishes of a collective, in shared memory or in an MPI message. The
// peers compare it with their own.
struct CallRecord {
  Identity identity;
  std::uint64_t computation = 0;  // a hash of all that the step computes; ranks may differ
  char site[kSiteBytes] = {};     // for error messages, not compared

  // Fill this record with the properties of a collective. A property that has no meaning for its
  // kind gets a fixed value, so that it is equal on all ranks.
  void assign(const Collective& collective, int size) noexcept;
  // Return a hash of `identity` (kind, dtype and so on) and `computation` (the hash of all that the
  // compiled step computes), without the call site. Two ranks with the same fingerprint are in the
  // same collective.
  std::uint64_t fingerprint(std::uint64_t seed) const noexcept {
    return identity.hash(seed) ^ computation;
  }
};
static_assert(std::is_trivially_copyable_v<CallRecord>);

// Return true if two ranks are in the same collective. Their identities (kind, dtype and so on)
// must be equal. Their computations, the hashes of all that their compiled steps compute, may
// differ: each rank may have its own version of the step. But if this rank has also loaded a step
// with the peer's computation, the peer is in another step. Then return false (computations.hpp).
// `held` has the computations of the steps that this rank has loaded.
bool agree(const CallRecord& mine, const CallRecord& theirs, const Computations& held);

// Return the collective that a record describes, for error messages. `counts` of the result is null
// if the collective has no counts. Otherwise, never read through this pointer, because the record
// has only a hash of the counts. The result has pointers into the record, so the record must
// outlive the result.
Collective collective_of(const CallRecord& record) noexcept;
std::string describe(const CallRecord& record);

// A rank's collective with the details that only the error message for a mismatch needs.
struct CallDetails {
  int rank;  // the number of the rank in the world
  const CallRecord& record;
  std::string_view program_text;          // "" if the text is not known
  std::optional<Layout> layout;           // the shapes; nullopt if they are not known
  const std::uint64_t* counts = nullptr;  // one per rank; null: equal blocks, or not known
};

// Return the message of a CollectiveMismatch between two ranks, whose calls are `a` and `b`. Their
// group has `size` ranks, and `where` names it ("" for the world).
std::string difference(std::string_view where, int size, const CallDetails& a,
                       const CallDetails& b);

}  // namespace ngd::comm
