// SPDX-License-Identifier: Apache-2.0
#include "comm/fork_guard.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <new>

namespace ngd::comm {

namespace {
constexpr std::size_t kBytes = 1;  // the kernel maps a whole page
}

ForkGuard::ForkGuard() {
  void* page = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) throw std::bad_alloc();
  page_ = static_cast<unsigned char*>(page);
  *page_ = 1;
  if (::madvise(page, kBytes, MADV_WIPEONFORK) != 0) pid_ = ::getpid();
}

ForkGuard::~ForkGuard() { ::munmap(page_, kBytes); }

bool ForkGuard::in_child() const noexcept {
  return *page_ == 0 || (pid_ != 0 && pid_ != ::getpid());
}

}  // namespace ngd::comm
