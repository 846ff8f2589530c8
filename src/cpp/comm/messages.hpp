// SPDX-License-Identifier: Apache-2.0
// Error messages, and parts of them, that all communicators share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "comm/collective.hpp"

namespace ngd::comm {

// The first, or the last, `most` bytes of a text, or up to three less: no character of UTF-8 is
// cut.
std::string_view head_of(std::string_view text, std::size_t most) noexcept;
std::string_view tail_of(std::string_view text, std::size_t most) noexcept;

// A text without the spaces and newlines at its end.
std::string_view without_end(std::string_view text) noexcept;

// Copies a call site that is shown to other ranks. The end, file and line, matters most. A long
// path is cut from the left, and then begins with "...". The name of a public call before it stays
// (public_call).
inline constexpr std::size_t kSiteBytes = 56;
void copy_site(const char* site, char (&to)[kSiteBytes]) noexcept;

std::string list_ranks(const std::vector<int>& ranks);  // "rank 1", "rank 1, rank 3"

// ---- failures between ranks: the facts of each rank, the rule, and the next step

// What a rank called, in a message.
struct RankCall {
  int rank;
  std::string call;
};

inline constexpr std::string_view kDifferentCollectives = "called different collectives";
inline constexpr std::string_view kSameCalls =
    "All ranks must call the same collectives in the same order, with equal shapes, dtypes and "
    "options. Look for a collective inside \"if rank == ...\", and for ranks with different "
    "numbers of batches.";

// "rank 0 and rank 1 <what>:\n  rank 0: <call>\n  rank 1: <call>\n<rule>", by ascending rank.
std::string mismatch(std::string_view what, RankCall a, RankCall b, std::string_view rule);

// A mismatch of a send of rank `sender` and the recv of rank `receiver` that it meets.
std::string mismatch_of_pair(std::string_view where, int sender, const Collective& send,
                             int receiver, const Collective& receive);

// A mismatch of an all_to_all: a rank sends more or fewer elements than the other one expects.
std::string mismatch_of_counts(std::string_view where, const RankCall& sender, std::uint64_t sent,
                               const RankCall& receiver, std::uint64_t expected);

// A mismatch of two compiled steps, from their texts (collective.hpp). In the first case the
// sequences of collectives differ. In the second case these are equal, and the steps compute
// different values; the calls are the collectives in which that was found.
std::string mismatch_of_collectives(std::string_view where, int rank_a, std::string_view text_a,
                                    int rank_b, std::string_view text_b);
std::string mismatch_of_computations(std::string_view where, const RankCall& a,
                                     std::string_view text_a, const RankCall& b,
                                     std::string_view text_b);

// Ranks that did not arrive, or that arrived and did not finish. `facts` has a line per rank.
std::string late(std::string_view call, const std::vector<int>& ranks, bool has_arrived,
                 double seconds, const std::vector<std::string>& facts, std::string_view advice);
// The advice: the ranks are in different calls; or the process of this id (0: not known) is slow.
std::string late_advice(bool is_in_other_call, int pid);

// A process that ended without a word while another rank waited for it.
std::string rank_died(std::string_view call, int rank, int pid);
// A rank that left in good order while another rank waited for it.
std::string rank_left(std::string_view call, int rank, bool of_world);

inline constexpr std::string_view kForkedChild =
    "collectives do not work in a forked child of a rank: start a process of its own "
    "(multiprocessing with the start method \"spawn\"), and call no collectives in it";

// A call that is refused: an earlier failure, or close(), has closed the group. The last one is
// for a call that was waiting.
std::string closed_by_failure(std::string_view call, std::string_view failure);
std::string closed_in_order(std::string_view call);
std::string closed_while_waiting(std::string_view call);

}  // namespace ngd::comm
