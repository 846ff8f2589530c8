// SPDX-License-Identifier: Apache-2.0
// A private view of shared memory: a write through the view does not change the shared memory.
#pragma once

#include <cstddef>
#include <vector>

namespace ngd::comm {

// A private mapping of a range of a file, which other mappings may change. A write through it
// copies the page for this process. From then on, the page shows the copy, until discard().
class CopyOnWriteMapping {
 public:
  // Map bytes [offset, offset + bytes) of the file `fd`. Throws OutOfMemory.
  CopyOnWriteMapping(int fd, std::size_t offset, std::size_t bytes);
  CopyOnWriteMapping(const CopyOnWriteMapping&) = delete;
  CopyOnWriteMapping& operator=(const CopyOnWriteMapping&) = delete;
  ~CopyOnWriteMapping();

  // Return the address of the first byte of the mapped range.
  std::byte* data() const noexcept { return base_ + begin_; }

  // Bytes [begin, end), counted from the begin of the mapped range.
  struct Range {
    std::size_t begin;
    std::size_t end;
  };
  // Return the byte ranges of the pages that a write has copied, in ascending order. Some bytes of
  // such a page may be equal to those of the file. Throws Unsupported if /proc/self/pagemap cannot
  // be read.
  std::vector<Range> copied() const;
  // Drop the copied pages: the mapping then shows the file again.
  void discard() noexcept;

 private:
  std::byte* base_;
  std::size_t mapped_;  // the number of bytes from base_ to the end of the range
  std::size_t begin_;   // the offset of the range from base_, in bytes
  std::size_t bytes_;
};

}  // namespace ngd::comm
