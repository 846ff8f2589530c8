// SPDX-License-Identifier: Apache-2.0
#include "kernels/machine.hpp"

#include "device/threads.hpp"

namespace ngd::kernels {

Machine this_machine() { return {.threads = device::thread_count(), .simd = simd_level()}; }

}  // namespace ngd::kernels
