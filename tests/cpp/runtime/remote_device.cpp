// SPDX-License-Identifier: Apache-2.0
#include "remote_device.hpp"

#include <cstdint>
#include <cstring>

#include "base/error.hpp"

namespace ngd::testing {

namespace {

constexpr std::uintptr_t kOffset = std::uintptr_t{1} << 61;  // not canonical on any CPU we run on

class Add final : public kernels::Kernel {
 public:
  explicit Add(std::int64_t count) : count_(count) {}
  void run(const kernels::KernelArgs& args) const override {
    const auto* a = static_cast<const float*>(RemoteDevice::to_real(args.inputs[0]));
    const auto* b = static_cast<const float*>(RemoteDevice::to_real(args.inputs[1]));
    auto* out = static_cast<float*>(RemoteDevice::to_real(args.outputs[0]));
    for (std::int64_t i = 0; i < count_; ++i) out[i] = a[i] + b[i];
  }

 private:
  std::int64_t count_;
};

class Copy final : public kernels::Kernel {
 public:
  explicit Copy(std::size_t bytes) : bytes_(bytes) {}
  void run(const kernels::KernelArgs& args) const override {
    std::memcpy(RemoteDevice::to_real(args.outputs[0]), RemoteDevice::to_real(args.inputs[0]),
                bytes_);
  }

 private:
  std::size_t bytes_;
};

class Fails final : public kernels::Kernel {
 public:
  void run(const kernels::KernelArgs&) const override {
    fail(ErrorKind::InvalidArgument, "index 7 is out of range");
  }
};

using Query = kernels::KernelQuery;
kernels::Verdict accept_any(const Query&) { return kernels::Verdict::accept(); }

const kernels::KernelRow kRows[] = {
    {"add", "test", accept_any,
     [](const Query& q) -> std::unique_ptr<kernels::Kernel> {
       return std::make_unique<Add>(q.outputs.at(0).count());
     }},
    {"copy", "test", accept_any,
     [](const Query& q) -> std::unique_ptr<kernels::Kernel> {
       return std::make_unique<Copy>(q.outputs.at(0).bytes());
     }},
    {"fails", "test", accept_any,
     [](const Query&) -> std::unique_ptr<kernels::Kernel> { return std::make_unique<Fails>(); }},
};

}  // namespace

void* RemoteDevice::to_real(void* pointer) noexcept {
  return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(pointer) - kOffset);
}
const void* RemoteDevice::to_real(const void* pointer) noexcept {
  return reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(pointer) - kOffset);
}

void* RemoteDevice::allocate(std::size_t bytes) {
  ++live_;
  void* real = device::cpu().allocate(bytes);
  return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(real) + kOffset);
}
void RemoteDevice::release(void* pointer) noexcept {
  --live_;
  device::cpu().release(to_real(pointer));
}
void RemoteDevice::copy_from_host(void* destination, const void* source, std::size_t bytes) {
  std::memcpy(to_real(destination), source, bytes);
}
void RemoteDevice::copy_to_host(void* destination, const void* source, std::size_t bytes) {
  std::memcpy(destination, to_real(source), bytes);
}

kernels::KernelTable remote_table() { return kRows; }

}  // namespace ngd::testing
