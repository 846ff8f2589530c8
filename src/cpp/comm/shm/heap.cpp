// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/heap.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace ngd::comm::shm {

namespace {
constexpr std::size_t kPage = 4096;
constexpr std::size_t kCommitStep = 1 << 20;  // a system call for each MiB at most
}  // namespace

std::uint64_t Heap::allocate(std::size_t bytes) {
  // Whole pages for what is large, so that no two blocks share one.
  const std::size_t unit = bytes >= kPage ? kPage : kLine;
  const std::size_t wanted = round_up(std::max<std::size_t>(bytes, 1), unit);
  const auto fits = [&](const auto& hole) {
    return round_up(hole.first, unit) - hole.first + wanted <= hole.second;
  };
  const auto hole = std::find_if(free_.begin(), free_.end(), fits);
  if (wanted < bytes || hole == free_.end())
    fail(ErrorKind::OutOfMemory, "the shared lane has no ", bytes, " bytes in a row left");
  const auto [begin, size] = *hole;
  const std::uint64_t offset = round_up(begin, unit), end = offset + wanted;
  if (end > committed_) {
    const std::size_t upto = std::min<std::size_t>(round_up(end, kCommitStep), end_);
    memory_.commit(committed_, upto - committed_);
    committed_ = upto;
  }
  used_.emplace(offset, wanted);
  free_.erase(hole);
  if (offset > begin) free_.emplace(begin, offset - begin);
  if (begin + size > end) free_.emplace(end, begin + size - end);
  return offset;
}

void Heap::release(std::uint64_t offset) noexcept {
  const auto block = used_.find(offset);
  if (block == used_.end()) return;
  std::uint64_t begin = offset, end = offset + block->second;
  used_.erase(block);
  auto next = free_.lower_bound(begin);
  if (next != free_.end() && next->first == end) {
    end += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == begin) {
      begin = before->first;
      free_.erase(before);
    }
  }
  free_.emplace(begin, end - begin);
}

}  // namespace ngd::comm::shm
