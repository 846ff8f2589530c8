// SPDX-License-Identifier: Apache-2.0
#include "comm/messages.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.hpp"

namespace ngd::comm {
namespace {

constexpr std::string_view kCut = "...";

// Return true for each byte of a UTF-8 character except the first one.
bool is_inside_character(char byte) noexcept {
  return (static_cast<unsigned char>(byte) & 0xc0) == 0x80;
}

// Remove the first line and its newline from `text`, and return the line without the newline.
std::string_view take_line(std::string_view& text) {
  const std::size_t end = text.find('\n');
  const std::string_view line = text.substr(0, end);
  text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  return line;
}

// Return a line of ProgramIdentity::text (one line per collective) without the call site, because
// call sites are not compared.
std::string_view without_site(std::string_view line) { return line.substr(0, line.find(" at ")); }

// The end of the collectives in ProgramIdentity::text. The name of the step follows.
constexpr std::string_view kEnd = "\n\n";

// collectives_of() returns the lines of the collectives in ProgramIdentity::text. name_of_program()
// returns the name of the step, or "a compiled step" if the text has no name.
std::string_view collectives_of(std::string_view text) { return text.substr(0, text.find(kEnd)); }

std::string_view name_of_program(std::string_view text) {
  const std::size_t end = text.find(kEnd);
  return end == std::string_view::npos ? "a compiled step" : text.substr(end + kEnd.size());
}

constexpr std::string_view kSamePairs =
    "A send and its recv must have the same number of elements, dtype and tag. A rank receives the "
    "messages of another rank in the order in which that rank sends them.";
constexpr std::string_view kNoMore = "no more collectives";
constexpr std::string_view kSameSteps =
    "All ranks must call the same steps in the same order, and build them from the same graph. "
    "step.compare_ranks(), called on all ranks, compares the collectives of one step.";

}  // namespace

// head_of() and tail_of() do not cut a UTF-8 character: they leave out the bytes of the character
// at the cut, at most three. If the text is not UTF-8, more than three bytes at the cut may look
// like the inside of one character. Then three of them are left out.
std::string_view head_of(std::string_view text, std::size_t max_bytes) noexcept {
  if (text.size() <= max_bytes) return text;
  std::size_t end = max_bytes;
  while (end > 0 && max_bytes - end < 3 && is_inside_character(text[end])) --end;
  return text.substr(0, end);
}

std::string_view tail_of(std::string_view text, std::size_t max_bytes) noexcept {
  if (text.size() <= max_bytes) return text;
  const std::size_t cut = text.size() - max_bytes;
  std::size_t begin = cut;
  while (begin < text.size() && begin - cut < 3 && is_inside_character(text[begin])) ++begin;
  return text.substr(begin);
}

std::string_view without_end(std::string_view text) noexcept {
  return text.substr(0, text.find_last_not_of(" \n") + 1);
}

void copy_site(const char* site, char (&to)[kSiteBytes]) noexcept {
  const std::size_t length = site == nullptr ? 0 : std::strlen(site);
  if (length < kSiteBytes) {
    if (length > 0) std::memcpy(to, site, length);
    to[length] = '\0';
    return;
  }
  const std::string_view full_site(site, length);
  const std::string_view call = public_call(full_site).substr(0, kSiteBytes / 2);
  const std::string_view path = full_site.substr(call.size());
  const std::string_view tail = tail_of(path, kSiteBytes - 1 - call.size() - kCut.size());
  char* end = to;
  for (const std::string_view part : {call, kCut, tail})
    end = std::copy(part.begin(), part.end(), end);
  *end = '\0';
}

std::string list_ranks(const std::vector<int>& ranks) {
  std::string list;
  for (int rank : ranks) list += concat(list.empty() ? "" : ", ", "rank ", rank);
  return list;
}

std::string mismatch(std::string_view what, RankCall a, RankCall b, std::string_view rule) {
  if (b.rank < a.rank) std::swap(a, b);
  return concat("rank ", a.rank, " and rank ", b.rank, " ", what, ":\n  rank ", a.rank, ": ",
                a.call, "\n  rank ", b.rank, ": ", b.call, "\n", rule);
}

std::string mismatch_of_pair(std::string_view where, int sender, const Collective& send,
                             int receiver, const Collective& receive) {
  const auto text_of = [](const Collective& call) {
    return concat(describe(call), " (tag ", call.tag, ")");
  };
  return mismatch(concat("called a send and a recv that differ", where), {sender, text_of(send)},
                  {receiver, text_of(receive)}, kSamePairs);
}

std::string mismatch_of_counts(std::string_view where, const RankCall& sender, std::uint64_t sent,
                               const RankCall& receiver, std::uint64_t expected) {
  return mismatch(concat("called all_to_all with numbers of elements that differ", where),
                  {sender.rank, concat("sends ", sent, " elements to rank ", receiver.rank, " in ",
                                       sender.call)},
                  {receiver.rank, concat("expects ", expected, " elements from rank ", sender.rank,
                                         " in ", receiver.call)},
                  "The number that a rank sends to another rank must be the number that the other "
                  "rank expects from it.");
}

std::string mismatch_of_collectives(std::string_view where, int rank_a, std::string_view text_a,
                                    int rank_b, std::string_view text_b) {
  text_a = collectives_of(text_a);
  text_b = collectives_of(text_b);
  for (int number = 1; !text_a.empty() || !text_b.empty(); ++number) {
    const bool has_a_ended = text_a.empty();
    const bool has_b_ended = text_b.empty();
    const std::string_view line_a = take_line(text_a);
    const std::string_view line_b = take_line(text_b);
    if (without_site(line_a) == without_site(line_b) && has_a_ended == has_b_ended) continue;
    return mismatch(concat("called compiled steps with different collectives", where,
                           "; the first difference is collective ", number),
                    {rank_a, std::string(has_a_ended ? kNoMore : line_a)},
                    {rank_b, std::string(has_b_ended ? kNoMore : line_b)}, kSameSteps);
  }
  return mismatch(concat("called different compiled steps", where), {rank_a, "a compiled step"},
                  {rank_b, "a compiled step"}, kSameSteps);
}

std::string mismatch_of_computations(std::string_view where, const RankCall& a,
                                     std::string_view text_a, const RankCall& b,
                                     std::string_view text_b) {
  return mismatch(concat("called different compiled steps, whose collectives are the same", where),
                  {a.rank, concat(name_of_program(text_a), ", in ", a.call)},
                  {b.rank, concat(name_of_program(text_b), ", in ", b.call)}, kSameSteps);
}

std::string late(std::string_view call, const std::vector<int>& ranks, bool has_arrived,
                 double seconds, const std::vector<std::string>& facts, std::string_view advice) {
  std::string text =
      concat(call, ": ", list_ranks(ranks),
             has_arrived ? " did not finish within " : " did not arrive within ", seconds, " s.");
  for (const std::string& fact : facts) text += concat("\n  ", fact);
  return concat(text, "\n", advice);
}

std::string late_advice(bool is_in_other_call, int pid) {
  if (is_in_other_call)
    return "All ranks must call the same collectives in the same order: compare the call sites "
           "above.";
  const std::string shown =
      pid == 0 ? "" : concat(" \"py-spy dump --pid ", pid, "\" shows where it is.");
  return concat("A late rank hangs, is slow, was stopped, or has skipped this call.", shown,
                " If it is only slow, set NGD_TIMEOUT to more seconds.");
}

std::string rank_died(std::string_view call, int rank, int pid) {
  return concat(call, ": rank ", rank, " (process ", pid,
                ") has died.\nRead the last output of rank ", rank,
                ", and the line of the launcher about it. SIGKILL mostly means that the memory of "
                "the machine or container was used up.");
}

std::string rank_left(std::string_view call, int rank, bool of_world) {
  return concat(call, ": rank ", rank, " has left the ", of_world ? "job" : "group",
                ".\nIt ended, or it closed the ", of_world ? "world" : "group",
                ", while this rank waits for it. All ranks must make the same number of calls; for "
                "loops of different lengths, use ngd.join.");
}

std::string closed_by_failure(std::string_view call, std::string_view failure) {
  return concat(call,
                ": an earlier failure closed this group. To continue, call ngd.shutdown() and then "
                "ngd.init() on all ranks, and make groups and steps again. The failure was:\n",
                failure);
}

std::string closed_in_order(std::string_view call) {
  return concat(call,
                ": this group was closed by close() or ngd.shutdown(). ngd.init() returns an open "
                "world, and its split() makes new groups.");
}

std::string closed_while_waiting(std::string_view call) {
  return concat(call,
                ": this group was closed by close() or ngd.shutdown() while this rank waited in "
                "it. Close a group after its last call has returned.");
}

}  // namespace ngd::comm
