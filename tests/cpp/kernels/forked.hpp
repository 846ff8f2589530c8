// SPDX-License-Identifier: Apache-2.0
// A kernel in a forked child, where there is one thread, also if it was made for several.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <memory>

#include "harness.hpp"

namespace ngd::kernels::test {

// Runs a kernel of one result here, then in a child, which must get the same within 1e-3.
inline void expect_same_in_a_forked_child(const KernelRow& row, const KernelQuery& query,
                                          const std::vector<Tensor>& inputs) {
  const Verdict verdict = row.accept(query);
  ASSERT_TRUE(verdict.accepted);
  const std::unique_ptr<Kernel> kernel = row.construct(query);
  Tensor in_parent(query.outputs[0]), in_child(query.outputs[0]),
      scratch(DType::U8, {static_cast<std::int64_t>(verdict.scratch_bytes)});
  std::vector<const void*> in;
  for (const Tensor& input : inputs) in.push_back(input.data());
  void* output = in_parent.data();
  const std::unique_ptr<device::Queue> queue = device::cpu().make_queue();
  kernel->run({in.data(), &output, scratch.data(), queue.get()});
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(60);  // a hang ends here
    output = in_child.data();
    kernel->run({in.data(), &output, scratch.data(), queue.get()});
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
