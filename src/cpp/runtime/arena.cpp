// SPDX-License-Identifier: Apache-2.0
#include "runtime/arena.hpp"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/bits.hpp"
#include "base/error.hpp"

namespace ngd::runtime {
namespace {

std::size_t page_bytes() { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }

// Return the bytes of physical memory of the host, without regard to the limit of a container.
std::size_t memory_of_machine() {
  return static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) * page_bytes();
}

// Return true if RLIMIT_AS is set, or if it cannot be read.
bool is_address_space_limited() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur != RLIM_INFINITY;
}

}  // namespace

Arena::~Arena() {
  if (base_ != nullptr) ::munmap(base_, reserved_);
}

void* Arena::reserve(std::size_t bytes) {
  const std::scoped_lock locked(mutex_);
  if (!has_tried_) {
    has_tried_ = true;
    if (is_address_space_limited()) return nullptr;
    const std::size_t wanted = memory_of_machine();
    void* address =
        ::mmap(nullptr, wanted, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) return nullptr;
    base_ = static_cast<std::byte*>(address);
    reserved_ = wanted;
  }
  if (bytes > reserved_) return nullptr;
  const std::size_t needed = round_up(bytes, page_bytes());
  if (needed > usable_) {
    if (::mprotect(base_ + usable_, needed - usable_, PROT_READ | PROT_WRITE) != 0)
      fail(ErrorKind::OutOfMemory, "Executable: no memory for ", bytes, " bytes");
    usable_ = needed;
  }
  return base_;
}

std::shared_ptr<Lent> Arena::lend(comm::Communicator& owner, std::size_t bytes) {
  const std::scoped_lock locked(mutex_);
  std::erase_if(lent_, [](const auto& each) { return each.expired(); });
  for (const auto& each : lent_) {
    std::shared_ptr<Lent> block = each.lock();
    if (block && block->fits(owner, bytes)) return block;
  }
  auto new_block = std::make_shared<Lent>(owner, bytes);
  lent_.push_back(new_block);
  return new_block;
}

}  // namespace ngd::runtime
