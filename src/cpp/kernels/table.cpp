// SPDX-License-Identifier: Apache-2.0
#include "kernels/rows.hpp"

namespace ngd::kernels {

namespace {

#define NGD_ROW(op, implementation, kernel) {op, #implementation, implementation::offer_##kernel},

constexpr KernelRow kCpuTable[] = {
#include "kernels/table.inc"
};

#undef NGD_ROW

}  // namespace

KernelTable cpu_table() { return kCpuTable; }

}  // namespace ngd::kernels
