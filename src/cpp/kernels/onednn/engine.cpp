// SPDX-License-Identifier: Apache-2.0
#include "kernels/onednn/engine.hpp"

#include <omp.h>

namespace ngd::kernels::onednn {

const dnnl::engine& engine() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

const dnnl::stream& stream() {
  static const dnnl::stream in_order(engine());
  return in_order;
}

dnnl::memory::data_type data_type(DType dtype) {
  switch (dtype) {
    case DType::F16:
      return dnnl::memory::data_type::f16;
    case DType::BF16:
      return dnnl::memory::data_type::bf16;
    default:
      return dnnl::memory::data_type::f32;
  }
}

bool has_native_products(DType dtype) {
  if (!is_half(dtype)) return true;
  return dnnl::get_effective_cpu_isa() >=
         (dtype == DType::BF16 ? dnnl::cpu_isa::avx512_core_bf16 : dnnl::cpu_isa::avx512_core_fp16);
}

bool append_post(dnnl::post_ops& posts, const std::string& name) {
  const auto algorithm = name == "gelu"        ? dnnl::algorithm::eltwise_gelu_erf
                         : name == "gelu_tanh" ? dnnl::algorithm::eltwise_gelu_tanh
                         : name == "silu"      ? dnnl::algorithm::eltwise_swish
                                               : dnnl::algorithm::undef;
  if (algorithm == dnnl::algorithm::undef) return false;
  posts.append_eltwise(algorithm, 1, 0);
  return true;
}

ThreadScope::ThreadScope(int threads)
    : previous_threads_(omp_get_max_threads()),
      threads_(threads),
      is_dynamic_(omp_get_dynamic() != 0) {
  if (threads_ != previous_threads_) omp_set_num_threads(threads_);
  if (is_dynamic_) omp_set_dynamic(0);  // with OMP_DYNAMIC, OpenMP may start fewer threads
}

ThreadScope::~ThreadScope() {
  if (is_dynamic_) omp_set_dynamic(1);
  if (threads_ != previous_threads_) omp_set_num_threads(previous_threads_);
}

}  // namespace ngd::kernels::onednn
