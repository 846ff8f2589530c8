// SPDX-License-Identifier: Apache-2.0
// The devices of this build. Each folder devices/NAME/ is a device: it defines `const DeviceRow&
// ngd::runtime::NAME::row()`, and the build finds the folder.
#pragma once

#include <string_view>

#include "device/device.hpp"
#include "kernels/kernel.hpp"

namespace ngd::runtime {

// An entry of the table of devices: the name, the device and its kernels.
struct DeviceRow {
  std::string_view name;
  device::Device& (*device)();
  kernels::KernelTable (*table)();
};

// Return the entry of the device with this name. Throws InvalidArgument if this build does not have
// it.
const DeviceRow& device_named(std::string_view name);

}  // namespace ngd::runtime
