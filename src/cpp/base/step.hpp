// SPDX-License-Identifier: Apache-2.0
// The steps of a protocol between ranks: each store or message that a peer can see has one before
// it and one behind it. Tests let a rank die at each of them; as shipped a step is nothing.
#pragma once

namespace ngd {

#if defined(NGD_TEST_STEPS)
inline void (*step_hook)() = nullptr;
inline void protocol_step() noexcept {
  if (step_hook != nullptr) step_hook();
}
#else
inline void protocol_step() noexcept {}
#endif

}  // namespace ngd
