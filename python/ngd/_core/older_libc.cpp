// SPDX-License-Identifier: Apache-2.0
// Definitions for wheels (packaging/wheel). The C++ library that is linked into a wheel needs these
// names, and the C library of the target machine may be too old to have them.
#include <sys/random.h>

#include <cstdint>
#include <cstdlib>

extern "C" {

// glibc 2.32: nonzero if no thread was ever started. It only saves atomic operations.
extern char __libc_single_threaded;
char __libc_single_threaded = 0;

// glibc 2.36: returns a random word.
std::uint32_t arc4random();
std::uint32_t arc4random() {
  std::uint32_t word = 0;
  if (::getrandom(&word, sizeof word, 0) != sizeof word) std::abort();
  return word;
}
}
