// SPDX-License-Identifier: Apache-2.0
#include "comm/identity.hpp"

#include "base/error.hpp"

namespace ngd::comm {
namespace {

// The hash of an all_to_all does not depend on the counts, because the ranks have different counts.
// Each pair of ranks compares the counts of that pair instead.
std::uint64_t hash_of_counts(const Collective& collective, int size) noexcept {
  std::uint64_t hash = mix(1, ~std::uint64_t{0});
  for (int r = 0; r < size && collective.kind != Kind::AllToAll; ++r)
    hash = mix(hash, collective.counts[r]);
  return hash | 1;
}

// Return a text with the properties of a call that describe() leaves out, such as " (root 0, ring,
// in a compiled step, counts 3 4)".
std::string options_of(const CallDetails& call, int size) {
  const Identity& identity = call.record.identity;
  std::string text = concat(
      " (root ", identity.root, ", ", identity.algorithm == Algorithm::Ring ? "ring" : "flat",
      identity.program_hash != 0 ? ", in a compiled step" : ", not in a compiled step");
  if (call.counts != nullptr) {
    text += ", counts";
    for (int r = 0; r < size; ++r) text += concat(" ", call.counts[r]);
  }
  return text + ")";
}

// Return true if describe() returns the same text for both calls, without the call sites.
bool are_described_alike(const CallRecord& a, const CallRecord& b) {
  Collective collective_a = collective_of(a), collective_b = collective_of(b);
  collective_a.site = collective_b.site = "";
  return describe(collective_a) == describe(collective_b);
}

// Return true if this rank has only the hash of the counts of the call, and not the counts.
bool has_unknown_counts(const CallDetails& call) noexcept {
  return call.record.identity.counts_hash != 0 && call.counts == nullptr;
}

// Return a text about differences between two calls that describe() does not show, or "". If this
// rank knows the layouts (the shapes of the arrays) of both calls, one line shows how they differ.
// If the counts (the numbers of elements per rank) differ and this rank does not know them all,
// one line says only that they differ. options_of() lists counts that this rank knows.
std::string hidden_differences(const CallDetails& a, const CallDetails& b) {
  std::string text;
  if (a.record.identity.layout_hash != b.record.identity.layout_hash && a.layout && b.layout)
    text += layout_difference(a.rank, *a.layout, b.rank, *b.layout) + ".\n";
  if (a.record.identity.counts_hash != b.record.identity.counts_hash &&
      (has_unknown_counts(a) || has_unknown_counts(b)))
    text += "The numbers of elements per rank differ.\n";
  return text;
}

}  // namespace

void CallRecord::assign(const Collective& collective, int size) noexcept {
  const Kind kind = collective.kind;
  const bool is_counted = kind != Kind::Barrier && collective.counts == nullptr;
  identity.count = is_counted ? collective.count : 0;
  identity.counts_hash = collective.counts == nullptr ? 0 : hash_of_counts(collective, size);
  identity.layout_hash = collective.layout == nullptr ? 0 : collective.layout->hash;
  identity.program_hash = collective.program == nullptr ? 0 : collective.program->hash;
  identity.root = has_root(kind) || between_two(kind) ? collective.root : 0;
  identity.kind = kind;
  identity.op = reduces(kind) ? collective.op : ReduceOp::None;
  identity.dtype = collective.dtype;
  identity.algorithm = collective.algorithm;
  computation = collective.program == nullptr ? 0 : collective.program->computation;
  copy_site(collective.site, site);
}

bool agree(const CallRecord& mine, const CallRecord& theirs, const Computations& held) {
  return mine.identity == theirs.identity &&
         (mine.computation == theirs.computation || !held.hold(theirs.computation));
}

Collective collective_of(const CallRecord& record) noexcept {
  const Identity& identity = record.identity;
  Collective collective;
  collective.kind = identity.kind;
  collective.op = identity.op;
  collective.dtype = identity.dtype;
  collective.count = identity.count;
  collective.root = identity.root;
  collective.algorithm = identity.algorithm;
  if (identity.counts_hash != 0) collective.counts = &identity.counts_hash;
  collective.site = record.site;
  return collective;
}

std::string describe(const CallRecord& record) { return describe(collective_of(record)); }

std::string difference(std::string_view where, int size, const CallDetails& a,
                       const CallDetails& b) {
  RankCall call_a{a.rank, describe(a.record)}, call_b{b.rank, describe(b.record)};
  if (a.record.identity == b.record.identity)
    return mismatch_of_computations(where, call_a, a.program_text, call_b, b.program_text);
  if (a.record.identity.program_hash != b.record.identity.program_hash && !a.program_text.empty() &&
      !b.program_text.empty())
    return mismatch_of_collectives(where, a.rank, a.program_text, b.rank, b.program_text);
  const std::string hidden = hidden_differences(a, b);
  if (hidden.empty() && are_described_alike(a.record, b.record)) {
    call_a.call += options_of(a, size);
    call_b.call += options_of(b, size);
  }
  return mismatch(concat(kDifferentCollectives, where), call_a, call_b, concat(hidden, kSameCalls));
}

}  // namespace ngd::comm
