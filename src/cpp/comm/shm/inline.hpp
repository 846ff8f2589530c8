// SPDX-License-Identifier: Apache-2.0
// Small reductions and barriers: each payload is published beside its flag.
#pragma once

#include "comm/shm/context.hpp"

namespace ngd::comm::shm {

// Return where a rank's inline payload is. Its counts precede it, if it has published any.
inline std::byte* inline_payload(const Segment& segment, std::uint64_t sequence, std::size_t bytes,
                                 std::size_t counts_bytes) noexcept {
  if (counts_bytes == 0 && bytes <= sizeof(Slot::tiny)) return segment.slot(sequence).tiny;
  return segment.payload(sequence) + counts_bytes;
}

// Every rank that gets the result reduces all payloads itself, in tree order.
class Inline {
 public:
  bool advance(Context& context);
};

}  // namespace ngd::comm::shm
