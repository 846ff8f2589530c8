// SPDX-License-Identifier: Apache-2.0
#include "comm/collective.hpp"

#include <array>
#include <numeric>
#include <string>

#include "base/config.hpp"
#include "base/error.hpp"

namespace ngd::comm {

namespace {

constexpr std::array<std::string_view, kKinds> kKindNames{
    "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "gather",
    "scatter",    "all_to_all",     "send",       "recv",      "barrier"};
constexpr std::array<std::string_view, 6> kOps{"none", "sum", "mean", "min", "max", "prod"};
constexpr std::array<std::string_view, 3> kAlgorithms{"auto", "flat", "ring"};

template <class Enum, std::size_t N>
Enum find(const std::array<std::string_view, N>& names, std::string_view name, const char* what) {
  for (std::size_t i = 0; i < N; ++i)
    if (names[i] == name) return static_cast<Enum>(i);
  std::string allowed;
  for (std::string_view each : names) allowed += (allowed.empty() ? "" : ", ") + std::string(each);
  fail(ErrorKind::InvalidArgument, what, ": expected one of ", allowed, "; got ", name);
}

std::uint64_t sum_of(const std::uint64_t* counts, int size) noexcept {
  return std::accumulate(counts, counts + size, std::uint64_t{0});
}

std::uint64_t all_blocks(const Collective& collective, const std::uint64_t* counts,
                         int size) noexcept {
  return counts != nullptr ? sum_of(counts, size)
                           : collective.count * static_cast<std::uint64_t>(size);
}

std::uint64_t block_of(const Collective& collective, int rank) noexcept {
  return collective.counts != nullptr ? collective.counts[rank] : collective.count;
}

}  // namespace

std::string_view name_of(Kind kind) noexcept { return kKindNames[static_cast<std::size_t>(kind)]; }
std::string_view name_of(ReduceOp op) noexcept { return kOps[static_cast<std::size_t>(op)]; }

Kind kind_named(std::string_view name) { return find<Kind>(kKindNames, name, "collective"); }
ReduceOp reduce_op_named(std::string_view name) { return find<ReduceOp>(kOps, name, "op"); }
Algorithm algorithm_named(std::string_view name) {
  return find<Algorithm>(kAlgorithms, name, "algorithm");
}

Algorithm preferred_algorithm() {
  return find<Algorithm>(kAlgorithms, config::all_reduce_algorithm(), "NGD_ALLREDUCE");
}

std::uint64_t source_elements(const Collective& collective, int rank, int size) noexcept {
  switch (collective.kind) {
    case Kind::AllReduce:
    case Kind::Reduce:
    case Kind::Send:
      return collective.count;
    case Kind::Broadcast:
      return rank == collective.root ? collective.count : 0;
    case Kind::AllGather:
    case Kind::Gather:
      return block_of(collective, rank);
    case Kind::Scatter:
      return rank == collective.root ? all_blocks(collective, collective.counts, size) : 0;
    case Kind::ReduceScatter:
    case Kind::AllToAll:
      return all_blocks(collective, collective.counts, size);
    case Kind::Receive:
    case Kind::Barrier:
      break;
  }
  return 0;
}

std::uint64_t destination_elements(const Collective& collective, int rank, int size) noexcept {
  switch (collective.kind) {
    case Kind::AllReduce:
    case Kind::Broadcast:
    case Kind::Receive:
      return collective.count;
    case Kind::Reduce:
      return rank == collective.root ? collective.count : 0;
    case Kind::AllGather:
      return all_blocks(collective, collective.counts, size);
    case Kind::Gather:
      return rank == collective.root ? all_blocks(collective, collective.counts, size) : 0;
    case Kind::Scatter:
    case Kind::ReduceScatter:
      return block_of(collective, rank);
    case Kind::AllToAll:
      return all_blocks(collective, collective.receive_counts, size);
    case Kind::Send:
    case Kind::Barrier:
      break;
  }
  return 0;
}

void validate(const Collective& collective, int rank, int size) {
  const auto refuse = [&](auto&&... why) {
    fail(ErrorKind::InvalidArgument, describe(collective), ": ", why...);
  };
  if (reduces(collective.kind)) {
    if (collective.op == ReduceOp::None)
      refuse("expected op to be one of sum, mean, min, max, prod; got none");
    if (collective.op == ReduceOp::Mean && !is_floating(collective.dtype))
      refuse("a mean needs a floating dtype; sum, then divide as you mean it, or cast first");
    if (collective.op == ReduceOp::Sum && collective.dtype == DType::Bool)
      refuse("bools have no sum; use max for or, min for and, or cast first");
  }
  if (has_root(collective.kind) && (collective.root < 0 || collective.root >= size))
    refuse("expected root to be in [0, ", size, "); got ", collective.root);
  if (between_two(collective.kind) &&
      (collective.root < 0 || collective.root >= size || collective.root == rank))
    refuse("expected another rank in [0, ", size, "); got ", collective.root, " on rank ", rank);
  const bool uneven = collective.counts != nullptr || collective.receive_counts != nullptr;
  if (collective.kind == Kind::AllToAll) {
    if ((collective.counts == nullptr) != (collective.receive_counts == nullptr))
      refuse("expected both the numbers sent and the numbers received; got one of them");
    if (uneven && collective.counts[rank] != collective.receive_counts[rank])
      refuse("expected rank ", rank, " to receive from itself what it sends itself; got ",
             collective.receive_counts[rank], " and ", collective.counts[rank]);
  } else if (collective.receive_counts != nullptr || (uneven && !has_blocks(collective.kind))) {
    refuse("expected blocks of one size; got counts");
  }
}

std::string describe(const Collective& collective) {
  std::string text(name_of(collective.kind));
  if (reduces(collective.kind)) text += concat("(", name_of(collective.op), ")");
  if (collective.kind != Kind::Barrier && collective.counts == nullptr)
    text += concat(" of ", collective.count, " ", name_of(collective.dtype));
  if (collective.counts != nullptr) text += concat(" of blocks of ", name_of(collective.dtype));
  if (between_two(collective.kind))
    text += concat(collective.kind == Kind::Send ? " to rank " : " from rank ", collective.root);
  if (collective.site != nullptr && *collective.site != '\0')
    text += concat(" at ", collective.site);
  return text;
}

}  // namespace ngd::comm
