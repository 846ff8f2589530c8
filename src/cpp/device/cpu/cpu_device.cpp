// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <cstring>
#include <new>

#include "base/error.hpp"
#include "device/device.hpp"

namespace ngd::device {

namespace {

class CpuDevice final : public Device {
 public:
  std::string_view name() const noexcept override { return "CPU"; }
  bool host_addressable() const noexcept override { return true; }

  void* allocate(std::size_t bytes) override {
    const std::size_t padded = (bytes + kAlignment) / kAlignment * kAlignment;
    void* pointer = std::aligned_alloc(kAlignment, padded);
    if (pointer == nullptr) fail(ErrorKind::OutOfMemory, "CPU: no memory for ", bytes, " bytes");
    return pointer;
  }
  void release(void* pointer) noexcept override { std::free(pointer); }
  void copy_from_host(void* destination, const void* source, std::size_t bytes) override {
    if (bytes > 0) std::memcpy(destination, source, bytes);
  }
  void copy_to_host(void* destination, const void* source, std::size_t bytes) override {
    if (bytes > 0) std::memcpy(destination, source, bytes);
  }
};

}  // namespace

Device& cpu() {
  static CpuDevice device;
  return device;
}

}  // namespace ngd::device
