// SPDX-License-Identifier: Apache-2.0
#include "comm/collective.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <string>

#include "base/config.hpp"
#include "base/error.hpp"
#include "comm/layout.hpp"

namespace ngd::comm {

ProgramIdentity in_branch(ProgramIdentity program, std::uint64_t branch) noexcept {
  if (branch == 0) return program;
  return {std::max<std::uint64_t>(mix(program.hash, branch), 1), nullptr, program.computation};
}

namespace {

constexpr auto kKindNames = [] {
  std::array<std::string_view, kKinds.size()> names;
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = kKinds[i].name;
  return names;
}();
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

// Return the number of elements of a source or a destination of `rank`. The array has all elements
// (Whole), the block of `rank` (Block), one block per rank (Blocks), or no element (Nothing).
// `counts` has the number of elements of each rank's block; null: every block has collective.count
// elements.
std::uint64_t elements_of(Part part, const Collective& collective, const std::uint64_t* counts,
                          int rank, int size) noexcept {
  switch (part) {
    case Part::Whole:
      return collective.count;
    case Part::Block:
      return counts != nullptr ? counts[rank] : collective.count;
    case Part::Blocks:
      return counts != nullptr ? sum_of(counts, size)
                               : collective.count * static_cast<std::uint64_t>(size);
    case Part::Nothing:
      break;
  }
  return 0;
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
  const Row& row = row_of(collective.kind);
  if (row.of_root == Role::Source && rank != collective.root) return 0;
  return elements_of(row.source, collective, collective.counts, rank, size);
}

std::uint64_t destination_elements(const Collective& collective, int rank, int size) noexcept {
  const Row& row = row_of(collective.kind);
  if (row.of_root == Role::Destination && rank != collective.root) return 0;
  const bool is_all_to_all = collective.kind == Kind::AllToAll;
  return elements_of(row.destination, collective,
                     is_all_to_all ? collective.receive_counts : collective.counts, rank, size);
}

void validate(const Collective& collective, int rank, int size) {
  const auto refuse = [&](auto&&... why) {
    fail(ErrorKind::InvalidArgument, describe(collective), ": ", why...);
  };
  const auto refuse_dtype = [&](const char* why) {
    fail(ErrorKind::DType, describe(collective), ": ", why);
  };
  if (reduces(collective.kind)) {
    if (collective.op == ReduceOp::None)
      refuse("expected op to be one of sum, mean, min, max, prod; got none");
    if (collective.op == ReduceOp::Mean && !is_floating(collective.dtype))
      refuse_dtype("a mean needs a floating dtype; use sum and then divide, or cast first");
    if (collective.op == ReduceOp::Sum && collective.dtype == DType::Bool)
      refuse_dtype("sum does not support bool; use max for or, min for and, or cast first");
  }
  if (has_root(collective.kind) && (collective.root < 0 || collective.root >= size))
    refuse("expected root to be in [0, ", size, "); got ", collective.root);
  if (between_two(collective.kind) &&
      (collective.root < 0 || collective.root >= size || collective.root == rank))
    refuse("expected another rank in [0, ", size, "); got ", collective.root, " on rank ", rank,
           size == 1
               ? ". The group has 1 rank: start several with a launcher, such as \"ngd run -n "
                 "2 script.py\""
               : "");
  const bool is_uneven = collective.counts != nullptr || collective.receive_counts != nullptr;
  if (collective.kind == Kind::AllToAll) {
    if ((collective.counts == nullptr) != (collective.receive_counts == nullptr))
      refuse("expected both the numbers sent and the numbers received; got one of them");
    if (is_uneven && collective.counts[rank] != collective.receive_counts[rank])
      refuse("expected rank ", rank, " to receive from itself what it sends itself; got ",
             collective.receive_counts[rank], " and ", collective.counts[rank]);
  } else if (collective.receive_counts != nullptr || (is_uneven && !has_blocks(collective.kind))) {
    refuse("expected blocks of one size; got counts");
  }
}

std::string describe(const Collective& collective) {
  const std::string_view site = collective.site == nullptr ? "" : collective.site;
  if (!public_call(site).empty()) return std::string(site);
  std::string text(name_of(collective.kind));
  if (reduces(collective.kind)) text += concat("(", name_of(collective.op), ")");
  if (collective.kind != Kind::Barrier && collective.counts == nullptr)
    text += concat(" of ", collective.count, " ", name_of(collective.dtype));
  if (collective.counts != nullptr) text += concat(" of blocks of ", name_of(collective.dtype));
  if (between_two(collective.kind))
    text += concat(collective.kind == Kind::Send ? " to rank " : " from rank ", collective.root);
  if (!site.empty()) text += concat(" at ", site);
  return text;
}

}  // namespace ngd::comm
