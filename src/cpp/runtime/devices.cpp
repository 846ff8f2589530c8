// SPDX-License-Identifier: Apache-2.0
#include "runtime/devices.hpp"

#include "base/error.hpp"

namespace ngd::runtime {

namespace {

constexpr DeviceRow kDevices[] = {
    {"CPU", device::cpu, kernels::cpu_table},
};

}  // namespace

const DeviceRow& device_named(std::string_view name) {
  for (const DeviceRow& row : kDevices)
    if (row.name == name) return row;
  fail(ErrorKind::InvalidArgument, "this build has no device called ", name);
}

}  // namespace ngd::runtime
