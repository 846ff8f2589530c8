// SPDX-License-Identifier: Apache-2.0
// A device: memory that its kernels may address, and copies between that memory and the host.
//
// The executor and the planner know nothing more about memory than this file says. A pointer that
// a device hands out is for its own kernels; host code may dereference it only where
// host_addressable() is true.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <utility>

namespace ngd::device {

inline constexpr std::size_t kAlignment = 64;  // of every buffer and every planned offset, in bytes

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string_view name() const noexcept = 0;
  virtual bool host_addressable() const noexcept = 0;
  virtual void* allocate(std::size_t bytes) = 0;  // aligned to kAlignment; zero bytes is legal
  virtual void release(void* pointer) noexcept = 0;
  virtual void copy_from_host(void* destination, const void* source, std::size_t bytes) = 0;
  virtual void copy_to_host(void* destination, const void* source, std::size_t bytes) = 0;
};

// Owned device memory. Moves, never copies.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device& device, std::size_t bytes)
      : device_(&device), data_(device.allocate(bytes)), bytes_(bytes) {}
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Buffer() {
    if (data_ != nullptr) device_->release(data_);
  }
  void* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }
  Device* device_ = nullptr;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

Device& cpu();  // the host's memory and cores

}  // namespace ngd::device
