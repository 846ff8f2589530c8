// SPDX-License-Identifier: Apache-2.0
// A view of memory in common through which this process may write without changing it.
#pragma once

#include <cstddef>
#include <vector>

namespace ngd::comm {

// Shows a range of a file that other mappings change. A write through this mapping copies the page
// for this process. From then on the page shows the copy, until discard().
class CopyOnWriteMapping {
 public:
  // Maps bytes [offset, offset + bytes) of a file. Throws OutOfMemory.
  CopyOnWriteMapping(int fd, std::size_t offset, std::size_t bytes);
  CopyOnWriteMapping(const CopyOnWriteMapping&) = delete;
  CopyOnWriteMapping& operator=(const CopyOnWriteMapping&) = delete;
  ~CopyOnWriteMapping();

  std::byte* data() const noexcept { return base_ + begin_; }

  // Bytes [begin, end) of the range.
  struct Range {
    std::size_t begin;
    std::size_t end;
  };
  // The ranges of copied pages, in ascending order. Other bytes of such a page may be equal to the
  // file's. Throws Unsupported without /proc/self/pagemap.
  std::vector<Range> copied() const;
  // Drops the copies.
  void discard() noexcept;

 private:
  std::byte* base_;
  std::size_t mapped_;  // bytes from base_, whole pages
  std::size_t begin_;   // of the range, from base_
  std::size_t bytes_;
};

}  // namespace ngd::comm
