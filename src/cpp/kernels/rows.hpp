// SPDX-License-Identifier: Apache-2.0
// The two functions of every kernel that a row of table.inc names.
#pragma once

#include "kernels/kernel.hpp"

namespace ngd::kernels {

#define NGD_ROW(op, implementation, kernel)                       \
  namespace implementation {                                      \
  Verdict accept_##kernel(const KernelQuery&);                    \
  std::unique_ptr<Kernel> construct_##kernel(const KernelQuery&); \
  }
#include "kernels/table.inc"
#undef NGD_ROW

}  // namespace ngd::kernels
