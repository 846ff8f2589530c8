// SPDX-License-Identifier: Apache-2.0
// oneDNN's engine and stream, and the words that its kernels share.
#pragma once

#include <dnnl.hpp>
#include <memory>
#include <string>

#include "device/device.hpp"
#include "device/threads.hpp"
#include "kernels/kernel.hpp"

namespace ngd::kernels::onednn {

const dnnl::engine& engine();
const dnnl::stream& stream();

dnnl::memory::data_type data_type(DType dtype);  // F32, F16, BF16

// Adds what a primitive applies to its result itself; false: it has no such thing. It has not relu:
// oneDNN's makes 0 of NaN. Those that it has keep NaN, at every SIMD level.
bool append_post(dnnl::post_ops& posts, const std::string& name);

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

// A kernel's primitives, made for a number of threads, and run on them. `Primitives` has a
// constructor of a query and a number of threads, threads(), scratch_bytes(), and run(args, scratch).
//
// All of them are made inside of a ThreadScope, descriptors and primitives: oneDNN keeps primitives
// in a cache, by their descriptors and by the threads that OpenMP has at that moment. Outside of
// the scope it would hand out, for one thread, a primitive that starts several.
template <class Primitives>
class Threaded {
 public:
  explicit Threaded(const KernelQuery& query, int threads = device::thread_count())
      : query_(query), primitives_(made_for(threads, query)) {}

  void run(const KernelArgs& args) const {
    if (primitives_.threads() > 1 && device::thread_count() == 1)
      run_alone(args);
    else
      primitives_.run(args, args.scratch);
  }

 private:
  static Primitives made_for(int threads, const KernelQuery& query) {
    const ThreadScope scope(threads);
    return Primitives(query, threads);
  }

  // In a forked child no second thread may start (device/threads.hpp), and a primitive cannot run
  // on fewer threads than it was made for: another one is made, with scratch of its own.
  void run_alone(const KernelArgs& args) const {
    if (alone_ == nullptr) {
      alone_ = std::make_unique<Primitives>(made_for(1, query_));
      alone_scratch_ = device::Buffer(device::cpu(), alone_->scratch_bytes());
    }
    alone_->run(args, alone_scratch_.data());
  }

  KernelQuery query_;
  Primitives primitives_;
  mutable std::unique_ptr<Primitives> alone_;
  mutable device::Buffer alone_scratch_;
};

}  // namespace ngd::kernels::onednn
