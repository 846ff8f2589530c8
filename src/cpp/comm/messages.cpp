// SPDX-License-Identifier: Apache-2.0
#include "comm/messages.hpp"

#include "base/error.hpp"

namespace ngd::comm {
namespace {

std::string_view take_line(std::string_view& text) {
  const std::size_t end = text.find('\n');
  const std::string_view line = text.substr(0, end);
  text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  return line;
}

// Call sites are carried for messages, never compared.
std::string_view without_site(std::string_view line) { return line.substr(0, line.rfind(" at ")); }

}  // namespace

std::string list_ranks(const std::vector<int>& ranks) {
  std::string list;
  for (int rank : ranks) list += concat(list.empty() ? "" : ", ", "rank ", rank);
  return list;
}

std::string first_difference(int rank, std::string_view mine, int peer, std::string_view theirs) {
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

}  // namespace ngd::comm
