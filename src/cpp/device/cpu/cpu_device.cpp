// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "base/error.hpp"
#include "device/device.hpp"

namespace ngd::device {

namespace {

constexpr std::size_t kPage = 4096, kHugePage = 2 << 20;

constexpr std::size_t round_up(std::size_t bytes, std::size_t to) {
  return (bytes + to - 1) / to * to;
}

// Memory of the system's own, in huge pages where the system gives them: a page that lies in no TLB
// costs a virtual machine more than a line that lies in no cache. Null: there is none.
void* map(std::size_t bytes) {
  const std::size_t length = round_up(bytes, kPage);
  void* mapped = ::mmap(nullptr, length + kHugePage, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  // What lies before a whole huge page is given back, and what is left over behind.
  auto* first = static_cast<std::byte*>(mapped);
  const auto address = reinterpret_cast<std::uintptr_t>(mapped);
  const std::size_t before = round_up(address, kHugePage) - address;
  if (before > 0) ::munmap(first, before);
  if (before < kHugePage) ::munmap(first + before + length, kHugePage - before);
  ::madvise(first + before, length, MADV_HUGEPAGE);  // where it fails, pages are small
  return first + before;
}

class CpuEvent final : public Event {
 public:
  bool done() const override { return true; }
  void wait() override {}
};

// The calling thread.
class CpuQueue final : public Queue {
 public:
  bool asynchronous() const noexcept override { return false; }
  void copy_from_host(void* destination, const void* source, std::size_t bytes) override {
    copy(destination, source, bytes);
  }
  void copy_to_host(void* destination, const void* source, std::size_t bytes) override {
    copy(destination, source, bytes);
  }
  void copy(void* destination, const void* source, std::size_t bytes) override {
    if (bytes > 0) std::memcpy(destination, source, bytes);
  }
  void clear(void* destination, std::size_t bytes) override {
    if (bytes > 0) std::memset(destination, 0, bytes);
  }
  void record(Event&) override {}
  void wait(const Event&) override {}
  void synchronize() override {}
};

class CpuDevice final : public Device {
 public:
  std::string_view name() const noexcept override { return "CPU"; }
  bool host_addressable() const noexcept override { return true; }
  bool addresses_host() const noexcept override { return true; }

  void* allocate(std::size_t bytes) override {
    void* pointer = bytes < kHugePage
                        ? std::aligned_alloc(kAlignment, round_up(bytes + 1, kAlignment))
                        : map(bytes);
    if (pointer == nullptr) fail(ErrorKind::OutOfMemory, "CPU: no memory for ", bytes, " bytes");
    return pointer;
  }
  void release(void* pointer, std::size_t bytes) noexcept override {
    if (bytes < kHugePage)
      std::free(pointer);
    else
      ::munmap(pointer, round_up(bytes, kPage));
  }
  std::unique_ptr<Queue> make_queue() override { return std::make_unique<CpuQueue>(); }
  std::unique_ptr<Event> make_event() override { return std::make_unique<CpuEvent>(); }
};

}  // namespace

Device& cpu() {
  static CpuDevice device;
  return device;
}

}  // namespace ngd::device
