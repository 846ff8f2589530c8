// SPDX-License-Identifier: Apache-2.0
// Calls of the program's own functions inside a step (ngd.call_host). The layer above, which has
// Python, sets the callback once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ngd::kernels {

struct HostBuffer {
  void* data;  // of an output that is not read: null
  std::size_t bytes;
};

// Calls function number `function`. Returns false if it raised; then the error is kept for the
// caller of the step.
using HostCallback = bool (*)(std::int64_t function, std::span<const HostBuffer> inputs,
                              std::span<const HostBuffer> outputs) noexcept;

void set_host_callback(HostCallback callback) noexcept;

}  // namespace ngd::kernels
