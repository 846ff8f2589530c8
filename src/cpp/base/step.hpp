// SPDX-License-Identifier: Apache-2.0
// Points of a protocol between ranks at which a test can kill a rank. Each store or message that
// other ranks can see has such a point before it, and one after it. In builds without
// NGD_TEST_STEPS, protocol_step() does nothing.
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
