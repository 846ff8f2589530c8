// SPDX-License-Identifier: Apache-2.0
// oneDNN's engine and stream, and the parts that its kernels share.
#pragma once

#include <dnnl.hpp>
#include <memory>
#include <optional>
#include <string>

#include "device/device.hpp"
#include "device/threads.hpp"
#include "kernels/kernel.hpp"

namespace ngd::kernels::onednn {

const dnnl::engine& engine();
const dnnl::stream& stream();

dnnl::memory::data_type data_type(DType dtype);  // F32, F16, BF16

// Return whether this CPU has instructions that multiply elements of a dtype. oneDNN emulates bf16
// on other CPUs with AVX-512.
bool has_native_products(DType dtype);

// Add an operation that a primitive applies to its own result. Return false if there is none of
// this name. There is no relu, because oneDNN's makes 0 of NaN. The others keep NaN at each SIMD
// level.
bool append_post(dnnl::post_ops& posts, const std::string& name);

// While it lives, OpenMP regions of the calling thread have this number of threads, including
// oneDNN's.
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

// The primitives of a kernel, made for a number of threads and run on them. A `Plan` describes them
// without their code. It has a constructor of a query, and scratch_bytes(). `Primitives` have a
// constructor of a plan, which generates the code, and run(args, scratch).
//
// Plans and primitives are made inside of a ThreadScope. oneDNN keeps primitives in a cache, by
// their descriptors and by the number of threads that OpenMP has when they are made. Outside of the
// scope it would return a primitive that starts several threads, if one is wanted.
template <class Plan, class Primitives>
class Threaded {
 public:
  Threaded(const KernelQuery& query, int threads)
      : query_(query), threads_(threads), plan_(plan_for(query, threads)) {}

  const Plan& plan() const { return plan_; }

  void prepare() {
    const ThreadScope scope(threads_);
    primitives_.emplace(plan_);
  }

  void run(const KernelArgs& args) const {
    if (threads_ > 1 && device::thread_count() == 1) return run_alone(args);
    const ThreadScope scope(threads_);
    primitives_->run(args, args.scratch);
  }

 private:
  static Plan plan_for(const KernelQuery& query, int threads) {
    const ThreadScope scope(threads);
    return Plan(query);
  }

  // In a forked child no second thread may start (device/threads.hpp), and a primitive cannot run
  // on fewer threads than it was made for. Makes another one, with scratch of its own.
  void run_alone(const KernelArgs& args) const {
    const ThreadScope scope(1);
    if (alone_ == nullptr) {
      const Plan plan(query_);
      alone_scratch_ = device::Buffer(device::cpu(), plan.scratch_bytes());
      alone_ = std::make_unique<Primitives>(plan);
    }
    alone_->run(args, alone_scratch_.data());
  }

  KernelQuery query_;
  int threads_;
  Plan plan_;
  std::optional<Primitives> primitives_;  // made by prepare()
  mutable std::unique_ptr<Primitives> alone_;
  mutable device::Buffer alone_scratch_;
};

}  // namespace ngd::kernels::onednn
