// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "base/error.hpp"
#include "device/device.hpp"

namespace ngd::device {

namespace {

class CpuEvent final : public Event {
 public:
  bool done() const override { return true; }
  void wait() override {}
};

// A synchronous queue: the calling thread does the work.
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
    const std::size_t padded = (bytes + kAlignment) / kAlignment * kAlignment;
    void* pointer = std::aligned_alloc(kAlignment, padded);
    if (pointer == nullptr) fail(ErrorKind::OutOfMemory, "CPU: no memory for ", bytes, " bytes");
    return pointer;
  }
  void release(void* pointer) noexcept override { std::free(pointer); }
  std::unique_ptr<Queue> make_queue() override { return std::make_unique<CpuQueue>(); }
  std::unique_ptr<Event> make_event() override { return std::make_unique<CpuEvent>(); }
};

}  // namespace

Device& cpu() {
  static CpuDevice device;
  return device;
}

}  // namespace ngd::device
