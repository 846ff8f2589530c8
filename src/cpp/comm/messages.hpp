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

// head_of() returns the first `max_bytes` bytes of a text, and tail_of() the last ones. The result
// may have up to three bytes less, so that no UTF-8 character is cut.
std::string_view head_of(std::string_view text, std::size_t max_bytes) noexcept;
std::string_view tail_of(std::string_view text, std::size_t max_bytes) noexcept;

// Return a text without the spaces and newlines at its end.
std::string_view without_end(std::string_view text) noexcept;

// copy_site() copies the text of a call site into an array of kSiteBytes bytes, for the error
// messages of other ranks. If the text is too long, "..." replaces the beginning of the path,
// because file and line at its end are the most useful part. The name of a public function before
// the path is kept: "join() at ...project/train.py:42".
inline constexpr std::size_t kSiteBytes = 56;
void copy_site(const char* site, char (&to)[kSiteBytes]) noexcept;

std::string list_ranks(const std::vector<int>& ranks);  // such as "rank 1, rank 3"

// ---- failures between ranks: the facts of each rank, the rule, and the next step

// A rank and the text of its call, for error messages.
struct RankCall {
  int rank;
  std::string call;
};

inline constexpr std::string_view kDifferentCollectives = "called different collectives";
inline constexpr std::string_view kSameCalls =
    "All ranks must call the same collectives in the same order, with equal shapes, dtypes and "
    "options. Look for a collective inside \"if rank == ...\", and for ranks with different "
    "numbers of batches.";

// Return the text "rank 0 and rank 1 <what>:\n rank 0: <call>\n rank 1: <call>\n<rule>" of a
// mismatch. The lower rank comes first.
std::string mismatch(std::string_view what, RankCall a, RankCall b, std::string_view rule);

// In the next functions, `where` is "" for the world, and otherwise names the group: for example,
// " in the group of rank 1, rank 3".

// Return the text of a mismatch between a send of rank `sender` and the matching recv of rank
// `receiver`.
std::string mismatch_of_pair(std::string_view where, int sender, const Collective& send,
                             int receiver, const Collective& receive);

// Return the text of a mismatch in an all_to_all: `sender` sends more or fewer elements to
// `receiver` than `receiver` expects.
std::string mismatch_of_counts(std::string_view where, const RankCall& sender, std::uint64_t sent,
                               const RankCall& receiver, std::uint64_t expected);

// Return the text of a mismatch between two compiled steps. `text_a` and `text_b` are their texts
// (ProgramIdentity::text in collective.hpp). mismatch_of_collectives(): the steps have different
// sequences of collectives. mismatch_of_computations(): the sequences are equal, but the steps
// compute different values. `a` and `b` are the calls in which the ranks were when the difference
// was found.
std::string mismatch_of_collectives(std::string_view where, int rank_a, std::string_view text_a,
                                    int rank_b, std::string_view text_b);
std::string mismatch_of_computations(std::string_view where, const RankCall& a,
                                     std::string_view text_a, const RankCall& b,
                                     std::string_view text_b);

// Return the text of a timeout error. `ranks` are the late ranks. `has_arrived`: they have called
// the collective `call`, but did not finish their part of it; otherwise they did not call it.
// `facts` are lines about the ranks. `advice` is the text that late_advice() returns.
std::string late(std::string_view call, const std::vector<int>& ranks, bool has_arrived,
                 double seconds, const std::vector<std::string>& facts, std::string_view advice);
// Return the advice for the user at the end of a timeout error. If the ranks are in different
// calls, it advises to compare the calls. Otherwise it advises to look at the process of the late
// rank (`pid`; 0: not known).
std::string late_advice(bool is_in_other_call, int pid);

// Return the text for a rank whose process ended without a report while another rank waited for it.
std::string rank_died(std::string_view call, int rank, int pid);
// Return the text for a rank that left the group without a failure while another rank waited for
// it.
std::string rank_left(std::string_view call, int rank, bool of_world);

inline constexpr std::string_view kForkedChild =
    "collectives do not work in a forked child of a rank: start a process of its own "
    "(multiprocessing with the start method \"spawn\"), and call no collectives in it";

// Return the text of a GroupClosed error. closed_by_failure(): an earlier failure has closed the
// group, and `failure` is its text. closed_in_order(): close() was called before this call.
// closed_while_waiting(): close() was called while this call waited.
std::string closed_by_failure(std::string_view call, std::string_view failure);
std::string closed_in_order(std::string_view call);
std::string closed_while_waiting(std::string_view call);

}  // namespace ngd::comm
