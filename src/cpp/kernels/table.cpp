// SPDX-License-Identifier: Apache-2.0
// The CPU's kernels, literally. Names and attributes are in README.md.
#include "kernels/rows.hpp"

namespace ngd::kernels {

namespace {

#define NGD_ROW(op, implementation, kernel) \
  {op, #implementation, implementation::accept_##kernel, implementation::construct_##kernel}

constexpr KernelRow kCpuTable[] = {
    NGD_ROW("elementwise", fused, elementwise),
    NGD_ROW("reduce", ref, reduce),
    NGD_ROW("argmax", ref, arg_reduce),
    NGD_ROW("argmin", ref, arg_reduce),
    NGD_ROW("top_k", ref, top_k),
    NGD_ROW("copy", ref, copy),
    NGD_ROW("transpose", ref, transpose),
    NGD_ROW("slice", ref, slice),
    NGD_ROW("pad_slice", ref, pad_slice),
    NGD_ROW("concat", ref, concat),
    NGD_ROW("gather", ref, gather),
    NGD_ROW("scatter_add", ref, scatter_add),
    NGD_ROW("one_hot", ref, one_hot),
    NGD_ROW("iota", ref, iota),
    NGD_ROW("random_uniform", ref, random),
    NGD_ROW("random_normal", ref, random),
    NGD_ROW("random_bits", ref, random),
#if defined(NGD_HAVE_ONEDNN)
    NGD_ROW("matmul", onednn, matmul),
#endif
    NGD_ROW("matmul", ref, matmul),
    NGD_ROW("softmax", fused, softmax),
    NGD_ROW("log_softmax", fused, softmax),
    NGD_ROW("softmax_cross_entropy", fused, softmax_cross_entropy),
    NGD_ROW("softmax_cross_entropy_grad", fused, softmax_cross_entropy),
};

#undef NGD_ROW

}  // namespace

KernelTable cpu_table() { return kCpuTable; }

}  // namespace ngd::kernels
