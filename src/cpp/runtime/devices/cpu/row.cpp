// SPDX-License-Identifier: Apache-2.0
// The row of the CPU in the table of devices. device/cpu/ has its implementation.
#include "runtime/devices.hpp"

namespace ngd::runtime::cpu {

const DeviceRow& row() {
  static constexpr DeviceRow row{"CPU", device::cpu, kernels::cpu_table};
  return row;
}

}  // namespace ngd::runtime::cpu
