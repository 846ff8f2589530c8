// SPDX-License-Identifier: Apache-2.0
// Small collectives, in which the data of every rank travel with its header (travels_with_header in
// choose.hpp).
#pragma once

#include <cstddef>
#include <vector>

#include "comm/collective.hpp"

namespace ngd::comm::mpi {

// Compute the result of a small collective, and write it to the destination of `rank`, this rank.
// contributions[r] is the source of rank r.
void finish_small(const Collective& collective, int rank, int size,
                  const std::vector<const std::byte*>& contributions);

}  // namespace ngd::comm::mpi
