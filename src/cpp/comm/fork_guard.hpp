// SPDX-License-Identifier: Apache-2.0
// A forked child of a rank is not a rank: it has copies of the engine's objects, and neither the
// threads nor the connections behind them. It must not call MPI, and must not destroy what another
// thread of its parent may have been using at the fork (docs/adr/0046).
#pragma once

#include <sys/types.h>

namespace ngd::comm {

// Tells the process that made the object from a forked child of it. Costs a load: the kernel
// zeroes the page behind it in a child (MADV_WIPEONFORK).
class ForkGuard {
 public:
  ForkGuard();
  ~ForkGuard();
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;
  bool in_child() const noexcept;

 private:
  unsigned char* page_;
  pid_t pid_ = 0;  // compared if the kernel cannot zero the page (before Linux 4.14)
};

}  // namespace ngd::comm
