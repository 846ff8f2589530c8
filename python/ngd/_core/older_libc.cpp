// SPDX-License-Identifier: Apache-2.0
// For wheels (packaging/wheel): what the C++ library that is linked in takes from a newer C library
// than the one that the wheel may run with.
#include <sys/random.h>

#include <cstdint>
#include <cstdlib>

extern "C" {

// glibc 2.32: whether no thread was ever started. It only saves atomic operations.
extern char __libc_single_threaded;
char __libc_single_threaded = 0;

// glibc 2.36: a random word.
std::uint32_t arc4random();
std::uint32_t arc4random() {
  std::uint32_t word = 0;
  if (::getrandom(&word, sizeof word, 0) != sizeof word) std::abort();
  return word;
}
}
