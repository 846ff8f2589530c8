// SPDX-License-Identifier: Apache-2.0
// oneDNN's engine and stream, and the words that its kernels share.
#pragma once

#include <dnnl.hpp>

#include "base/shape.hpp"

namespace ngd::kernels::onednn {

const dnnl::engine& engine();
const dnnl::stream& stream();

dnnl::memory::data_type data_type(DType dtype);  // F32, F16, BF16

// Makes oneDNN use as many threads as other kernels; called before a primitive is made or run.
void follow_thread_count();

}  // namespace ngd::kernels::onednn
