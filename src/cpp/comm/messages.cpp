// SPDX-License-Identifier: Apache-2.0
#include "comm/messages.hpp"

#include <cstring>

#include "base/error.hpp"

namespace ngd::comm {
namespace {

constexpr std::string_view kCut = "...";

bool is_inside_character(char byte) noexcept {
  return (static_cast<unsigned char>(byte) & 0xc0) == 0x80;
}

std::string_view take_line(std::string_view& text) {
  const std::size_t end = text.find('\n');
  const std::string_view line = text.substr(0, end);
  text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  return line;
}

// Call sites are carried for messages, never compared.
std::string_view without_site(std::string_view line) { return line.substr(0, line.find(" at ")); }

constexpr std::string_view kEnd = "\n\n";  // of the collectives in a program's text

std::string_view collectives_of(std::string_view text) { return text.substr(0, text.find(kEnd)); }

std::string_view name_of_program(std::string_view text) {
  const std::size_t end = text.find(kEnd);
  return end == std::string_view::npos ? "a program" : text.substr(end + kEnd.size());
}

}  // namespace

// What is no UTF-8 at all may have many bytes that look like the inside of a character: cut it
// then.
std::string_view head_of(std::string_view text, std::size_t most) noexcept {
  if (text.size() <= most) return text;
  std::size_t end = most;
  while (end > 0 && most - end < 3 && is_inside_character(text[end])) --end;
  return text.substr(0, end);
}

std::string_view tail_of(std::string_view text, std::size_t most) noexcept {
  if (text.size() <= most) return text;
  const std::size_t cut = text.size() - most;
  std::size_t begin = cut;
  while (begin < text.size() && begin - cut < 3 && is_inside_character(text[begin])) ++begin;
  return text.substr(begin);
}

void copy_site(const char* site, char (&to)[kSiteBytes]) noexcept {
  const std::size_t length = site == nullptr ? 0 : std::strlen(site);
  if (length < kSiteBytes) {
    if (length > 0) std::memcpy(to, site, length);
    to[length] = '\0';
    return;
  }
  const std::string_view kept = tail_of({site, length}, kSiteBytes - 1 - kCut.size());
  std::memcpy(to, kCut.data(), kCut.size());
  std::memcpy(to + kCut.size(), kept.data(), kept.size());
  to[kCut.size() + kept.size()] = '\0';
}

std::string list_ranks(const std::vector<int>& ranks) {
  std::string list;
  for (int rank : ranks) list += concat(list.empty() ? "" : ", ", "rank ", rank);
  return list;
}

std::string first_difference(int rank, std::string_view mine, int peer, std::string_view theirs) {
  mine = collectives_of(mine);
  theirs = collectives_of(theirs);
  for (int number = 1; !mine.empty() || !theirs.empty(); ++number) {
    const bool mine_ended = mine.empty();
    const bool theirs_ended = theirs.empty();
    const std::string_view my_line = take_line(mine);
    const std::string_view their_line = take_line(theirs);
    if (without_site(my_line) == without_site(their_line) && mine_ended == theirs_ended) continue;
    return concat("the first difference is in line ", number, ":\n  rank ", rank, ": ",
                  mine_ended ? "(the end)" : my_line, "\n  rank ", peer, ": ",
                  theirs_ended ? "(the end)" : their_line);
  }
  return "their texts are equal";
}

std::string computation_difference(int rank_a, const std::string& call_a, std::string_view text_a,
                                   int rank_b, const std::string& call_b, std::string_view text_b) {
  return concat(", whose collectives are the same: rank ", rank_a, ": ", name_of_program(text_a),
                ", in ", call_a, "; rank ", rank_b, ": ", name_of_program(text_b), ", in ", call_b,
                "; all ranks call their programs in one order");
}

}  // namespace ngd::comm
