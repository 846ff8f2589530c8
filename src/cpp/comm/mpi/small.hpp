// SPDX-License-Identifier: Apache-2.0
// Collectives so small that every rank's contribution travels with its header.
#pragma once

#include <cstddef>
#include <vector>

#include "comm/collective.hpp"

namespace ngd::comm::mpi {

// The same on all ranks, whoever contributes.
bool travels_with_header(const Collective& collective, int size);

// Everything is here: contributions[r] is what rank r's source held.
void finish_small(const Collective& collective, int rank, int size,
                  const std::vector<const std::byte*>& contributions);

}  // namespace ngd::comm::mpi
