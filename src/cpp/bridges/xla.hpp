// SPDX-License-Identifier: Apache-2.0
// Collectives as calls of XLA's foreign function interface (FFI), for programs of JAX.
//
// A call has these attributes:
//   group         the number from register_group
//   kind          the name of the collective
//   op            the name of the reduction
//   root          a rank
//   tag           the tag of a send or receive
//   site          the text of the call site, for error messages
//   asynchronous  if it is not 0, XLA does not wait for the call
// A call has an operand and a token of 4 bytes, and returns a result and the token. A call that
// reads the token of another call runs after this other call. A send has no data to return, so its
// result is a zero. The operand of a receive is not read.
#pragma once

#include <cstdint>

#include "comm/communicator.hpp"

namespace ngd::bridges {

// Return a number by which calls name the group. The group must outlive all calls.
std::int64_t register_group(comm::Communicator& group);

// Return the address of the handler, which is an XLA_FFI_Handler.
std::uintptr_t xla_handler() noexcept;

}  // namespace ngd::bridges
