// SPDX-License-Identifier: Apache-2.0
// oneDNN's engine and stream, and the words that its kernels share.
#pragma once

#include <dnnl.hpp>

#include "base/shape.hpp"

namespace ngd::kernels::onednn {

const dnnl::engine& engine();
const dnnl::stream& stream();

dnnl::memory::data_type data_type(DType dtype);  // F32, F16, BF16

// While it lives, the calling thread's OpenMP regions, oneDNN's among them, have so many threads.
class ThreadScope {
 public:
  explicit ThreadScope(int threads);
  ~ThreadScope();
  ThreadScope(const ThreadScope&) = delete;
  ThreadScope& operator=(const ThreadScope&) = delete;

 private:
  int before_, threads_;
  bool dynamic_;
};

}  // namespace ngd::kernels::onednn
