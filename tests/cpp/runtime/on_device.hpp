// SPDX-License-Identifier: Apache-2.0
// The fixture of tests that run on devices of several kinds.
#pragma once

#include <gtest/gtest.h>

#include "device_kinds.hpp"
#include "remote_device.hpp"

namespace ngd::testing {

class OnDevice : public ::testing::TestWithParam<DeviceKind> {
 protected:
  ~OnDevice() override { EXPECT_EQ(device.live_allocations(), 0u); }
  RemoteDevice device = GetParam().make();
};

}  // namespace ngd::testing
