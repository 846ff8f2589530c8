// SPDX-License-Identifier: Apache-2.0
// The only header that Cython includes.
#pragma once

#include "base/checksum.hpp"
#include "base/config.hpp"
#include "base/dtype.hpp"
#include "base/error.hpp"
#include "base/simd.hpp"
#include "bridges/xla.hpp"
#include "comm/communicator.hpp"
#include "comm/grouped.hpp"
#include "comm/layout.hpp"
#include "comm/mark.hpp"
#include "comm/retry.hpp"
#include "device/device.hpp"
#include "device/threads.hpp"
#include "kernels/kernel.hpp"
#include "runtime/devices.hpp"
#include "runtime/executor.hpp"
#include "runtime/first_fit.hpp"
