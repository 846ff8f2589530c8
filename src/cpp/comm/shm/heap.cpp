// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/heap.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace ngd::comm::shm {

namespace {
constexpr std::size_t kPage = 4096;
constexpr std::size_t kCommitStep = 1 << 20;  // commits in steps of 1 MiB save system calls
}  // namespace

std::uint64_t Heap::allocate(std::size_t bytes) {
  // A block of at least one page begins at a page and has whole pages, so it shares no page with
  // other such blocks. A smaller block begins at a cache line and has whole cache lines.
  const std::size_t unit = bytes >= kPage ? kPage : kLine;
  const std::size_t wanted = round_up(std::max<std::size_t>(bytes, 1), unit);
  const auto fits = [&](const auto& hole) {
    return round_up(hole.first, unit) - hole.first + wanted <= hole.second;
  };
  const auto hole = std::find_if(free_.begin(), free_.end(), fits);
  if (wanted < bytes || hole == free_.end())
    fail(ErrorKind::OutOfMemory, "the shared arena has no ", bytes, " contiguous bytes left");
  const auto [begin, size] = *hole;
  const std::uint64_t offset = round_up(begin, unit), end = offset + wanted;
  if (end > committed_) {
    const std::size_t commit_end = std::min<std::size_t>(round_up(end, kCommitStep), end_);
    memory_.commit(committed_, commit_end - committed_);
    committed_ = commit_end;
  }
  const bool leaves_front = offset > begin, leaves_back = begin + size > end;
  const auto used = used_.emplace(offset, wanted).first;
  try {
    if (leaves_front && leaves_back) free_.emplace(end, begin + size - end);
  } catch (...) {
    used_.erase(used);
    throw;
  }
  if (leaves_front) {
    hole->second = offset - begin;
  } else {
    auto node = free_.extract(hole);
    node.key() = end;
    node.mapped() = begin + size - end;
    if (leaves_back) free_.insert(std::move(node));
  }
  return offset;
}

// Release a block, and merge it with the free blocks next to it. Allocates no memory: the map node
// of the block moves from `used_` to `free_`. So the function cannot fail when a group is closed.
void Heap::release(std::uint64_t offset) noexcept {
  auto block = used_.extract(offset);
  if (block.empty()) return;
  const auto next = free_.lower_bound(offset);
  if (next != free_.end() && next->first == offset + block.mapped()) {
    block.mapped() += next->second;
    free_.erase(next);
  }
  const auto following = free_.lower_bound(offset);
  if (following != free_.begin()) {
    const auto previous = std::prev(following);
    if (previous->first + previous->second == offset) {
      previous->second += block.mapped();
      return;
    }
  }
  free_.insert(std::move(block));
}

}  // namespace ngd::comm::shm
