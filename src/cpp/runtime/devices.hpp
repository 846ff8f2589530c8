// SPDX-License-Identifier: Apache-2.0
// The devices of this build: one table.
#pragma once

#include <string_view>

#include "device/device.hpp"
#include "kernels/kernel.hpp"

namespace ngd::runtime {

struct DeviceRow {
  std::string_view name;
  device::Device& (*device)();
  kernels::KernelTable (*table)();
};

// Throws InvalidArgument where this build has no device of that name.
const DeviceRow& device_named(std::string_view name);

}  // namespace ngd::runtime
