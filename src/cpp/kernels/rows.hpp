// SPDX-License-Identifier: Apache-2.0
// Declarations of the functions offer_<kernel>, one per kernel in table.inc. Such a function gets a
// query: an op with its types and attributes. It returns a kernel for the query, or the reason why
// it has none.
#pragma once

#include "kernels/kernel.hpp"

namespace ngd::kernels {

#define NGD_ROW(op, implementation, kernel)                 \
  namespace implementation {                                \
  Offer offer_##kernel(const KernelQuery&, const Machine&); \
  }
#include "kernels/table.inc"
#undef NGD_ROW

}  // namespace ngd::kernels
