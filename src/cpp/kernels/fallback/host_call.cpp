// SPDX-License-Identifier: Apache-2.0
// The kernel of call_host, with which a compiled step calls a Python function. The function has
// operands and results, and runs on the thread that runs the step.
#include "kernels/host_call.hpp"

#include <atomic>
#include <vector>

#include "base/error.hpp"
#include "kernels/rows.hpp"

namespace ngd::kernels {

namespace {
std::atomic<HostCallback> host_callback{nullptr};
}

void set_host_callback(HostCallback callback) noexcept { host_callback = callback; }

namespace fallback {

namespace {

// Return the size in bytes of each array, given by its type.
std::vector<std::size_t> bytes_of(const std::vector<TensorType>& types) {
  std::vector<std::size_t> bytes;
  for (const TensorType& type : types) bytes.push_back(type.bytes());
  return bytes;
}

class HostCall final : public Kernel {
 public:
  explicit HostCall(const KernelQuery& query)
      : function_(query.attrs.integer("function")),
        input_bytes_(bytes_of(query.inputs)),
        output_bytes_(bytes_of(query.outputs)) {}

  void run(const KernelArgs& args) const override {
    std::vector<HostBuffer> inputs, outputs;
    for (std::size_t i = 0; i < input_bytes_.size(); ++i)
      inputs.push_back({const_cast<void*>(args.inputs[i]), input_bytes_[i]});
    for (std::size_t i = 0; i < output_bytes_.size(); ++i)
      outputs.push_back({args.outputs[i], output_bytes_[i]});
    const HostCallback callback = host_callback;
    if (callback == nullptr || !callback(function_, inputs, outputs))
      fail(ErrorKind::Interrupted, "a function of ngd.call_host raised");
  }

 private:
  std::int64_t function_;
  std::vector<std::size_t> input_bytes_, output_bytes_;
};

}  // namespace

Offer offer_host_call(const KernelQuery& query, const Machine&) {
  return {std::make_unique<HostCall>(query)};
}

}  // namespace fallback

}  // namespace ngd::kernels
