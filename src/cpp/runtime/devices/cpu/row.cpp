// SPDX-License-Identifier: Apache-2.0
// The CPU as a device that Python can name. What it is stands in device/cpu/.
#include "runtime/devices.hpp"

namespace ngd::runtime::cpu {

const DeviceRow& row() {
  static constexpr DeviceRow row{"CPU", device::cpu, kernels::cpu_table};
  return row;
}

}  // namespace ngd::runtime::cpu
