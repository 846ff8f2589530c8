// SPDX-License-Identifier: Apache-2.0
// The inline algorithm, for small reductions and for barriers. Each rank publishes its payload (the
// data of its source) with the flag that it has arrived. When all ranks have arrived, each rank
// that gets the result reads all payloads. The payload is in Slot::tiny, next to the flag, if it
// has at most 24 bytes and the rank publishes no counts (numbers of elements, one per rank).
// Otherwise it is in the memory at Segment::payload().
#pragma once

#include "comm/shm/context.hpp"

namespace ngd::comm::shm {

// Return the address at which a rank publishes the data of its source (`bytes` bytes).
// `counts_bytes`: the size of the counts that the rank publishes before the data, or 0.
inline std::byte* inline_payload(const Segment& segment, std::uint64_t sequence, std::size_t bytes,
                                 std::size_t counts_bytes) noexcept {
  if (counts_bytes == 0 && bytes <= sizeof(Slot::tiny)) return segment.slot(sequence).tiny;
  return segment.payload(sequence) + counts_bytes;
}

// The inline algorithm, for small reductions and barriers. Every rank publishes the data of its
// source (the payload). Every rank that gets the result reduces all payloads in the canonical order
// (base/reduce.hpp).
class Inline {
 public:
  // Complete the collective on this rank, and return true. Call it when all ranks have arrived.
  bool advance(Context& context);
};

}  // namespace ngd::comm::shm
