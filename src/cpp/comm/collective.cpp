// SPDX-License-Identifier: Apache-2.0
#include "comm/collective.hpp"

#include <array>
#include <string>

#include "base/config.hpp"
#include "base/error.hpp"

namespace ngd::comm {

namespace {

constexpr std::array<std::string_view, 11> kKinds{
    "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "gather",
    "scatter",    "all_to_all",     "send",       "receive",   "barrier"};
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

bool reduces(Kind kind) {
  return kind == Kind::AllReduce || kind == Kind::ReduceScatter || kind == Kind::Reduce;
}

bool has_root(Kind kind) {
  return kind == Kind::Broadcast || kind == Kind::Reduce || kind == Kind::Gather ||
         kind == Kind::Scatter;
}

}  // namespace

std::string_view name_of(Kind kind) noexcept { return kKinds[static_cast<std::size_t>(kind)]; }
std::string_view name_of(ReduceOp op) noexcept { return kOps[static_cast<std::size_t>(op)]; }

Kind kind_named(std::string_view name) { return find<Kind>(kKinds, name, "collective"); }
ReduceOp reduce_op_named(std::string_view name) { return find<ReduceOp>(kOps, name, "op"); }
Algorithm algorithm_named(std::string_view name) {
  return find<Algorithm>(kAlgorithms, name, "algorithm");
}

Algorithm preferred_algorithm() {
  return find<Algorithm>(kAlgorithms, config::all_reduce_algorithm(), "NGD_ALLREDUCE");
}

void validate(const Collective& collective, int size) {
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
}

std::string describe(const Collective& collective) {
  std::string text(name_of(collective.kind));
  if (reduces(collective.kind)) text += concat("(", name_of(collective.op), ")");
  if (collective.kind != Kind::Barrier)
    text += concat(" of ", collective.count, " ", name_of(collective.dtype));
  if (collective.site != nullptr && *collective.site != '\0')
    text += concat(" at ", collective.site);
  return text;
}

}  // namespace ngd::comm
