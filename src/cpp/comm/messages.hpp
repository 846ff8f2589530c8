// SPDX-License-Identifier: Apache-2.0
// Pieces of the error messages that every communicator words alike.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ngd::comm {

// The first, or the last, `most` bytes of a text, or up to three less: no character of UTF-8 is
// cut.
std::string_view head_of(std::string_view text, std::size_t most) noexcept;
std::string_view tail_of(std::string_view text, std::size_t most) noexcept;

// Copies a call site that is shown to other ranks. The end says most, the file's name and the line:
// a long one is cut from the left, and then begins with "...".
inline constexpr std::size_t kSiteBytes = 56;
void copy_site(const char* site, char (&to)[kSiteBytes]) noexcept;

std::string list_ranks(const std::vector<int>& ranks);  // "rank 1", "rank 1, rank 3"

// Of two programs' texts (collective.hpp), where their collectives part: "the first difference is
// in line 2:\n  rank 0: ...\n  rank 1:
// ...".
std::string first_difference(int rank, std::string_view mine, int peer, std::string_view theirs);

// The other case: the collectives are the same, and what the programs compute is not.
std::string computation_difference(int rank_a, const std::string& call_a, std::string_view text_a,
                                   int rank_b, const std::string& call_b, std::string_view text_b);

}  // namespace ngd::comm
