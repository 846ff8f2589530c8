// SPDX-License-Identifier: Apache-2.0
// oneDNN's engine and stream, and the code that ngd's kernels on top of oneDNN share.
#pragma once

#include <dnnl.hpp>
#include <memory>
#include <optional>
#include <string>

#include "device/device.hpp"
#include "device/threads.hpp"
#include "kernels/kernel.hpp"

namespace ngd::kernels::onednn {

// engine() returns the oneDNN engine of the CPU, and stream() an in-order stream on it. The first
// call creates it for the whole process.
const dnnl::engine& engine();
const dnnl::stream& stream();

// Return oneDNN's type for a dtype, which must be F32, F16 or BF16.
dnnl::memory::data_type data_type(DType dtype);

// Return true if this CPU has instructions that multiply elements of a dtype. oneDNN emulates bf16
// on other CPUs with AVX-512.
bool has_native_products(DType dtype);

// Add a post-operation, which a primitive applies to its own result: "gelu", "gelu_tanh" or "silu".
// Return false for any other name. The name "relu" is not accepted, because oneDNN's relu turns NaN
// into 0. The accepted functions keep NaN on each SIMD level.
bool append_post(dnnl::post_ops& posts, const std::string& name);

// While this object exists, each OpenMP region of the calling thread has `threads` threads,
// including the regions inside oneDNN.
class ThreadScope {
 public:
  explicit ThreadScope(int threads);
  ~ThreadScope();
  ThreadScope(const ThreadScope&) = delete;
  ThreadScope& operator=(const ThreadScope&) = delete;

 private:
  int previous_threads_, threads_;
  bool is_dynamic_;
};

// The primitives of a kernel, which are built for a number of threads and run on them. Both
// template parameters are classes of the kernel. `Plan` describes the primitives without their
// code: it has a constructor that takes a query, and a function scratch_bytes(). `Primitives` has a
// constructor that takes a plan and generates the code, and a function run(args, scratch).
//
// Plans and primitives are constructed inside of a ThreadScope. oneDNN keeps primitives in a cache,
// by their descriptors and by the number of threads that OpenMP has when they are constructed.
// Without the scope, oneDNN could return a primitive that starts several threads when one thread is
// required.
template <class Plan, class Primitives>
class Threaded {
 public:
  Threaded(const KernelQuery& query, int threads)
      : query_(query), threads_(threads), plan_(plan_for(query, threads)) {}

  const Plan& plan() const { return plan_; }

  // Construct the primitives, which generates their code. Called once, before the first run().
  void prepare() {
    const ThreadScope scope(threads_);
    primitives_.emplace(plan_);
  }

  // Run the primitives on the constructor's number of threads. Run them on one thread if this
  // process may not start a second one (device::thread_count() is 1).
  void run(const KernelArgs& args) const {
    if (threads_ > 1 && device::thread_count() == 1) return run_on_one_thread(args);
    const ThreadScope scope(threads_);
    primitives_->run(args, args.scratch);
  }

 private:
  // Return the Plan of a query, constructed while OpenMP regions have `threads` threads
  // (ThreadScope).
  static Plan plan_for(const KernelQuery& query, int threads) {
    const ThreadScope scope(threads);
    return Plan(query);
  }

  // Run the kernel on one thread. A process that was forked calls this, because it may not start a
  // second thread (device/threads.hpp). A primitive cannot run on fewer threads than it was built
  // for. So the first call builds other primitives for one thread, with their own scratch memory,
  // and later calls use them again.
  void run_on_one_thread(const KernelArgs& args) const {
    const ThreadScope scope(1);
    if (one_thread_primitives_ == nullptr) {
      const Plan plan(query_);
      one_thread_scratch_ = device::Buffer(device::cpu(), plan.scratch_bytes());
      one_thread_primitives_ = std::make_unique<Primitives>(plan);
    }
    one_thread_primitives_->run(args, one_thread_scratch_.data());
  }

  KernelQuery query_;
  int threads_;
  Plan plan_;
  std::optional<Primitives> primitives_;  // constructed by prepare()
  mutable std::unique_ptr<Primitives> one_thread_primitives_;
  mutable device::Buffer one_thread_scratch_;
};

}  // namespace ngd::kernels::onednn
