// SPDX-License-Identifier: Apache-2.0
#include "runtime/devices.hpp"

#include "base/error.hpp"

// The build makes device_folders.inc, which has one line NGD_DEVICE(folder) for each folder of
// devices/. Here, each line declares the function row() of its folder.
#define NGD_DEVICE(folder)         \
  namespace ngd::runtime::folder { \
  const DeviceRow& row();          \
  }
#include "device_folders.inc"
#undef NGD_DEVICE

namespace ngd::runtime {

const DeviceRow& device_named(std::string_view name) {
#define NGD_DEVICE(folder) \
  if (folder::row().name == name) return folder::row();
#include "device_folders.inc"
#undef NGD_DEVICE
  fail(ErrorKind::InvalidArgument, "this build has no device called ", name);
}

}  // namespace ngd::runtime
