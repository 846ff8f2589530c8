// SPDX-License-Identifier: Apache-2.0
// Collectives as calls of XLA's foreign function interface (FFI), for programs of JAX.
//
// A call has the attributes "group" (of register_group), "kind" and "op" (by name), "root", "tag",
// "site" and "asynchronous" (XLA does not wait for the call). It has an operand and a token of 4
// bytes, and returns a result and the token. A call that reads the token of another call runs after
// it. A send returns a zero; the operand of a receive is not read.
#pragma once

#include <cstdint>

#include "comm/communicator.hpp"

namespace ngd::bridges {

// Return a number by which calls name the group. The group must outlive all calls.
std::int64_t register_group(comm::Communicator& group);

// Return the address of the handler, which is an XLA_FFI_Handler.
std::uintptr_t xla_handler() noexcept;

}  // namespace ngd::bridges
