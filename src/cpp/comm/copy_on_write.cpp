// SPDX-License-Identifier: Apache-2.0
#include "comm/copy_on_write.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <system_error>

#include "base/bits.hpp"
#include "base/error.hpp"

namespace ngd::comm {

namespace {

// Bits of an entry of /proc/self/pagemap, which describes one page of this process
// (Documentation/admin-guide/mm/pagemap.rst of Linux).
constexpr std::uint64_t kPresent = std::uint64_t{1} << 63;
constexpr std::uint64_t kSwapped = std::uint64_t{1} << 62;
constexpr std::uint64_t kOfFile = std::uint64_t{1} << 61;

std::size_t page_bytes() { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }

// Return the text of errno.
std::string last_error() { return std::system_category().message(errno); }

// Return true if the page of this pagemap entry is a private copy, not a page of the file.
bool is_copy(std::uint64_t entry) {
  return (entry & (kPresent | kSwapped)) != 0 && (entry & kOfFile) == 0;
}

// The open file /proc/self/pagemap.
class PageMap {
 public:
  PageMap() : fd_(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC)) {
    if (fd_ < 0)
      fail(ErrorKind::Unsupported, "expected to read /proc/self/pagemap; got: ", last_error());
  }
  PageMap(const PageMap&) = delete;
  PageMap& operator=(const PageMap&) = delete;
  ~PageMap() { ::close(fd_); }

  // Call visit(number) for each page of which this process has a private copy. Only the pages
  // `first` to `first` + `count` - 1 are examined.
  template <typename Visit>
  void each_copy(std::uint64_t first, std::size_t count, Visit visit) const {
    std::array<std::uint64_t, 4096> entries;
    while (count > 0) {
      const std::size_t wanted = std::min(count, entries.size());
      const ssize_t bytes_read = ::pread(fd_, entries.data(), wanted * sizeof entries[0],
                                         static_cast<off_t>(first * sizeof entries[0]));
      if (bytes_read < 0 && errno == EINTR) continue;
      if (bytes_read < static_cast<ssize_t>(sizeof entries[0]))
        fail(ErrorKind::Unsupported, "expected to read /proc/self/pagemap; got: ", last_error());
      const std::size_t pages = static_cast<std::size_t>(bytes_read) / sizeof entries[0];
      for (std::size_t i = 0; i < pages; ++i)
        if (is_copy(entries[i])) visit(first + i);
      first += pages;
      count -= pages;
    }
  }

 private:
  int fd_;
};

}  // namespace

CopyOnWriteMapping::CopyOnWriteMapping(int fd, std::size_t offset, std::size_t bytes) {
  begin_ = offset % page_bytes();
  bytes_ = bytes;
  mapped_ = begin_ + bytes;
  void* base = ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd,
                      static_cast<off_t>(offset - begin_));
  if (base == MAP_FAILED)
    fail(ErrorKind::OutOfMemory, "no address space for ", mapped_, " bytes: ", last_error());
  base_ = static_cast<std::byte*>(base);
}

CopyOnWriteMapping::~CopyOnWriteMapping() { ::munmap(base_, mapped_); }

std::vector<CopyOnWriteMapping::Range> CopyOnWriteMapping::copied() const {
  const std::size_t page = page_bytes();
  const auto first = reinterpret_cast<std::uintptr_t>(base_) / page;
  std::vector<Range> ranges;
  PageMap().each_copy(first, divide_up(mapped_, page), [&](std::uint64_t number) {
    const std::size_t at = (number - first) * page;  // the offset of the page from base_, in bytes
    const Range range{std::max(at, begin_) - begin_, std::min(at + page, begin_ + bytes_) - begin_};
    if (!ranges.empty() && ranges.back().end == range.begin)
      ranges.back().end = range.end;
    else
      ranges.push_back(range);
  });
  return ranges;
}

void CopyOnWriteMapping::discard() noexcept { ::madvise(base_, mapped_, MADV_DONTNEED); }

}  // namespace ngd::comm
