// SPDX-License-Identifier: Apache-2.0
// A device that keeps the contract honest: its memory is nobody else's. The pointers that it hands
// out are addresses that no process can have, so that host code that dereferences one dies at once.
#pragma once

#include "device/device.hpp"
#include "kernels/kernel.hpp"

namespace ngd::testing {

class RemoteDevice final : public device::Device {
 public:
  std::string_view name() const noexcept override { return "REMOTE"; }
  bool host_addressable() const noexcept override { return false; }
  void* allocate(std::size_t bytes) override;
  void release(void* pointer) noexcept override;
  void copy_from_host(void* destination, const void* source, std::size_t bytes) override;
  void copy_to_host(void* destination, const void* source, std::size_t bytes) override;

  std::size_t live_allocations() const noexcept { return live_; }

  // Only this device's kernels may call these.
  static void* to_real(void* pointer) noexcept;
  static const void* to_real(const void* pointer) noexcept;

 private:
  std::size_t live_ = 0;
};

// "add" of two f32 tensors of one shape, "copy", "store_fails" (throws), all on REMOTE pointers.
kernels::KernelTable remote_table();

}  // namespace ngd::testing
