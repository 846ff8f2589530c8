// SPDX-License-Identifier: Apache-2.0
// Pieces of the error messages that every communicator words alike.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ngd::comm {

std::string list_ranks(const std::vector<int>& ranks);  // "rank 1", "rank 1, rank 3"

// Where two programs' texts part: "the first difference is in line 2:\n  rank 0: ...\n  rank 1:
// ...".
std::string first_difference(int rank, std::string_view mine, int peer, std::string_view theirs);

}  // namespace ngd::comm
