// SPDX-License-Identifier: Apache-2.0
// Calls of Python functions inside a compiled step (ngd.call_host). ngd's Cython code sets the
// callback below, once per process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ngd::kernels {

// The memory of one operand or result of a Python function.
struct HostBuffer {
  void* data;  // null for an output that no instruction reads
  std::size_t bytes;
};

// The type of the callback, which calls Python function number `function` of the program. It
// returns false if the Python function has raised an exception. The exception then stays set in the
// calling thread, and the call that runs the compiled step raises it later.
using HostCallback = bool (*)(std::int64_t function, std::span<const HostBuffer> inputs,
                              std::span<const HostBuffer> outputs) noexcept;

// Set the callback of all call_host kernels of this process. Without a callback, these kernels
// fail.
void set_host_callback(HostCallback callback) noexcept;

}  // namespace ngd::kernels
