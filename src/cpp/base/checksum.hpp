// SPDX-License-Identifier: Apache-2.0
// A 128-bit checksum, computed at about the speed at which memory is read.
//
// Equal bytes have equal checksums on every CPU and at every address. For different bytes that were
// not constructed for this purpose, the probability of equal checksums is about 2^-64. It is not
// 2^-128, because the first part of the computation sums in accumulators of 64 bits. The
// probability is an estimate, not a proved bound. This is not a cryptographic digest: an attacker
// can construct different bytes with equal checksums.
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
