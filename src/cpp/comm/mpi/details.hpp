// SPDX-License-Identifier: Apache-2.0
// The details of a collective, for error messages: the text that lists the collectives of its
// compiled step, or the layout of its array if it is not in a step. The ranks send the details only
// after two ranks have found that their calls differ.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/identity.hpp"
#include "comm/mpi/wire.hpp"

namespace ngd::comm::mpi {

// Return the details of a collective as bytes: the text of its compiled step, or else its layout;
// "" if it has neither.
std::string encode_details(const Collective& collective);

// The details of a rank's collective, decoded from its header and from `bytes`, the bytes of its
// details message. `bytes` is empty if the details message has not arrived.
class DecodedDetails {
 public:
  DecodedDetails(const Header& header, std::optional<std::string> bytes);
  // Return the decoded details as a CallDetails, whose field `rank` is `world_rank`.
  CallDetails of(int world_rank) const;

 private:
  const Header& header_;
  std::optional<std::string> bytes_;
  std::vector<std::uint64_t> numbers_;
  Layout layout_;
};

}  // namespace ngd::comm::mpi
