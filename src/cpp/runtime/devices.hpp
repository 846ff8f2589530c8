// SPDX-License-Identifier: Apache-2.0
// The devices of this build. A folder devices/NAME/ is one: it defines
// `const DeviceRow& ngd::runtime::NAME::row()`, and the build finds it.
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
