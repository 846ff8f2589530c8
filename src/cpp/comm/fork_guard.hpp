// SPDX-License-Identifier: Apache-2.0
// A forked child of a rank is not a rank. It has copies of the objects of ngd, but none of the
// threads that use them. It must not call MPI, and must not destroy an object that another thread
// of its parent may have used at the fork (docs/adr/0046).
#pragma once

#include <sys/types.h>

namespace ngd::comm {

// Detects a forked child of the process that made the object. A check reads one byte of a page that
// the kernel zeroes in the child (MADV_WIPEONFORK).
class ForkGuard {
 public:
  ForkGuard();
  ~ForkGuard();
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;
  // Return true in a forked child of the process that made this object.
  bool in_child() const noexcept;

 private:
  unsigned char* page_;
  // The id of the process that made the object, if the kernel cannot zero a page in a forked
  // child (before Linux 4.14); otherwise 0. in_child() compares it with getpid().
  pid_t pid_ = 0;
};

}  // namespace ngd::comm
