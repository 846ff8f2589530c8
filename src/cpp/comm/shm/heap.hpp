// SPDX-License-Identifier: Apache-2.0
// The allocator of the shared arena: first fit over offsets of this rank's own segment. Its tables
// are private memory, so that no peer can corrupt them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "comm/shm/segment.hpp"

namespace ngd::comm::shm {

class Heap {
 public:
  Heap(Memory& memory, std::size_t end) : memory_(memory), end_(end) {
    free_.emplace(kHeapOffset, end - kHeapOffset);
  }

  std::uint64_t allocate(std::size_t bytes);  // 64-byte aligned; throws OutOfMemory
  void release(std::uint64_t offset) noexcept;

 private:
  Memory& memory_;
  std::size_t end_;
  std::size_t committed_ = kHeapOffset;  // the end of the pages that are committed
  // offset -> bytes of a free block; no two are adjacent
  std::map<std::uint64_t, std::size_t> free_;
  std::map<std::uint64_t, std::size_t> used_;
};

}  // namespace ngd::comm::shm
