// SPDX-License-Identifier: Apache-2.0
// Run a kernel in a forked child, on one thread, even if it was built for several.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <memory>

#include "harness.hpp"

namespace ngd::kernels::test {

// Run a kernel of one result in this process and in a child. The results must agree within 1e-3.
inline void expect_same_in_a_forked_child(std::string_view implementation, const KernelQuery& query,
                                          const std::vector<Tensor>& inputs) {
  const Offer offer = offer_of(query, implementation);
  ASSERT_NE(offer.kernel, nullptr) << offer.refusal;
  Kernel& kernel = *offer.kernel;
  kernel.prepare();
  Tensor in_parent(query.outputs[0]), in_child(query.outputs[0]),
      scratch(DType::U8, {static_cast<std::int64_t>(kernel.scratch_bytes())});
  std::vector<const void*> in;
  for (const Tensor& input : inputs) in.push_back(input.data());
  void* output = in_parent.data();
  const std::unique_ptr<device::Queue> queue = device::cpu().make_queue();
  kernel.run({in.data(), &output, scratch.data(), queue.get()});
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(60);  // ends a process that hangs
    output = in_child.data();
    kernel.run({in.data(), &output, scratch.data(), queue.get()});
    bool near = true;
    for (std::int64_t i = 0; i < in_child.count(); ++i)
      near = near && std::fabs(in_child.at(i) - in_parent.at(i)) < 1e-3;
    _exit(near ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

}  // namespace ngd::kernels::test
