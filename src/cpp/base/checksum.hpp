// SPDX-License-Identifier: Apache-2.0
// A 128-bit checksum, computed at about the speed at which memory is read.
//
// Equal bytes have equal checksums on every CPU and at every address. Different bytes have different
// ones except by an accident of probability 2^-64 or less. Bytes that are chosen in order to collide
// are no accident: this is not a cryptographic digest.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ngd {

struct Checksum {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
};

Checksum checksum(const void* data, std::size_t bytes);

}  // namespace ngd
