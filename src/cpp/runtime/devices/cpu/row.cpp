// SPDX-License-Identifier: Apache-2.0
// The entry of the CPU in the table of devices. The implementation is in device/cpu/.
#include "runtime/devices.hpp"

namespace ngd::runtime::cpu {

const DeviceRow& row() {
  static constexpr DeviceRow row{"CPU", device::cpu, kernels::cpu_table};
  return row;
}

}  // namespace ngd::runtime::cpu
