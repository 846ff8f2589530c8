// SPDX-License-Identifier: Apache-2.0
// Collectives as calls of XLA's foreign function interface (FFI), which JAX's programs make.
//
// A call has the attributes "group" (of enlist), "kind" and "op" (by name), "root", "tag", "site" and
// "asynchronous" (whether XLA goes on meanwhile), an operand and a token of 4 bytes, and gives a
// result and the token. A call that reads the token of another one runs after it. A send gives a
// zero; what a receive is given is not read.
#pragma once

#include <cstdint>

#include "comm/communicator.hpp"

namespace ngd::bridges {

// Makes a group known to calls, by a number; the caller keeps it for as long as calls may come.
std::int64_t enlist(comm::Communicator& group);

// The address of the handler, an XLA_FFI_Handler.
std::uintptr_t xla_handler() noexcept;

}  // namespace ngd::bridges
