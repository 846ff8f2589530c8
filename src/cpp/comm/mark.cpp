// SPDX-License-Identifier: Apache-2.0
#include "comm/mark.hpp"

#include <sys/mman.h>
#include <unistd.h>

namespace ngd::comm {

namespace {
constexpr std::size_t kBytes = 1;  // the kernel maps a whole page
}

Mark::Mark(const std::string& name) noexcept {
  const int fd = ::memfd_create(name.c_str(), MFD_CLOEXEC);
  if (fd < 0) return;
  void* page = ::mmap(nullptr, kBytes, PROT_NONE, MAP_SHARED, fd, 0);
  ::close(fd);
  if (page == MAP_FAILED) return;
  page_ = page;
}

Mark::~Mark() {
  if (page_ != nullptr) ::munmap(page_, kBytes);
}

}  // namespace ngd::comm
