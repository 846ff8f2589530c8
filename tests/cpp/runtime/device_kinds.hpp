// SPDX-License-Identifier: Apache-2.0
// The kinds of devices that tests run on.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "remote_device.hpp"

namespace ngd::testing {

struct DeviceKind {
  const char* name;
  Memory memory;
  bool asynchronous;
  // So long that a host that does not wait is too early.
  RemoteDevice make() const { return {memory, asynchronous, std::chrono::milliseconds(1)}; }
};

inline constexpr DeviceKind kDeviceKinds[] = {
    {"OfItsOwnMemory", Memory::Own, false},
    {"OfItsOwnMemoryLater", Memory::Own, true},
    {"OfMemoryThatTheHostSeesLater", Memory::Seen, true},
    {"OfTheHostsMemoryLater", Memory::Host, true},
};

inline std::string name_of_kind(const ::testing::TestParamInfo<DeviceKind>& info) {
  return info.param.name;
}

}  // namespace ngd::testing
