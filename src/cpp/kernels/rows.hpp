// SPDX-License-Identifier: Apache-2.0
// What table.cpp names: the two functions of every kernel.
#pragma once

#include "kernels/kernel.hpp"

#define NGD_DECLARE_KERNEL(name)             \
  Verdict accept_##name(const KernelQuery&); \
  std::unique_ptr<Kernel> construct_##name(const KernelQuery&)

namespace ngd::kernels {

namespace onednn {
NGD_DECLARE_KERNEL(matmul);
}  // namespace onednn

namespace fused {
NGD_DECLARE_KERNEL(elementwise);
NGD_DECLARE_KERNEL(softmax);
NGD_DECLARE_KERNEL(softmax_cross_entropy);
}  // namespace fused

namespace ref {
NGD_DECLARE_KERNEL(reduce);
NGD_DECLARE_KERNEL(arg_reduce);
NGD_DECLARE_KERNEL(top_k);
NGD_DECLARE_KERNEL(copy);
NGD_DECLARE_KERNEL(transpose);
NGD_DECLARE_KERNEL(slice);
NGD_DECLARE_KERNEL(pad_slice);
NGD_DECLARE_KERNEL(concat);
NGD_DECLARE_KERNEL(gather);
NGD_DECLARE_KERNEL(scatter_add);
NGD_DECLARE_KERNEL(one_hot);
NGD_DECLARE_KERNEL(iota);
NGD_DECLARE_KERNEL(random);
NGD_DECLARE_KERNEL(matmul);
}  // namespace ref

}  // namespace ngd::kernels
