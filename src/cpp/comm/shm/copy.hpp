// SPDX-License-Identifier: Apache-2.0
// Copies of blocks, with a faster copy for blocks that are larger than one core's share of the
// caches.
#pragma once

#include <cstddef>
#include <cstring>

#include "base/copy_past_caches.hpp"

namespace ngd::comm::shm {

// A copy of a block of at least this many bytes bypasses the caches. This shortens an all_gather
// from 8.0 to 6.4 ms, and a broadcast from 5.8 to 4.0 ms: 64 MiB of float32 from private memory, 2
// ranks, AMD EPYC 9005 with 32 MiB of L3, the least of two runs.
inline constexpr std::size_t kPastCaches = 8 << 20;

// Copy `bytes` bytes, which are a part of a block of `block` bytes. The copy of a large block
// bypasses the caches.
inline void copy_piece(std::byte* to, const std::byte* from, std::size_t bytes, std::size_t block) {
  if (block >= kPastCaches) {
    copy_past_caches(to, from, bytes);
    return finish_past_caches();
  }
  std::memcpy(to, from, bytes);
}

// Copy the bytes [0, bytes), except [hole_begin, hole_end).
inline void copy_around(std::byte* to, const std::byte* from, std::size_t bytes,
                        std::size_t hole_begin, std::size_t hole_end) {
  std::memcpy(to, from, hole_begin);
  std::memcpy(to + hole_end, from + hole_end, bytes - hole_end);
}

}  // namespace ngd::comm::shm
