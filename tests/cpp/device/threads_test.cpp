// SPDX-License-Identifier: Apache-2.0
// Tests the cores of threads that run no kernels. Run with and without OMP_PROC_BIND.
#include "device/threads.hpp"

#include <gtest/gtest.h>
#include <omp.h>
#include <sched.h>

#include <cstdlib>
#include <thread>

namespace ngd::device {
namespace {

cpu_set_t my_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  EXPECT_EQ(sched_getaffinity(0, sizeof cores, &cores), 0);
  return cores;
}

// The cores of a thread started here, before and after it leaves the cores of the kernels.
struct Cores {
  cpu_set_t before, after;
};
Cores cores_of_a_helper() {
  Cores cores{};
  std::thread([&] {
    cores.before = my_cores();
    OffKernelCores off_kernel_cores;
    off_kernel_cores.follow();
    off_kernel_cores.follow();
    cores.after = my_cores();
  }).join();
  return cores;
}

TEST(Threads, AHelperOfUnboundKernelsKeepsItsCores) {
  if (std::getenv("OMP_PROC_BIND") != nullptr) GTEST_SKIP() << "OMP_PROC_BIND is set";
  set_thread_share(1);
  const Cores cores = cores_of_a_helper();
  EXPECT_TRUE(CPU_EQUAL(&cores.before, &cores.after));
}

TEST(Threads, AHelperOfBoundKernelsUsesOtherCores) {
  if (std::getenv("OMP_PROC_BIND") == nullptr) GTEST_SKIP() << "OMP_PROC_BIND is not set";
  const int places = omp_get_num_places();
  if (places < 2) GTEST_SKIP() << "one core";
  const cpu_set_t kernels = my_cores();
  ASSERT_EQ(CPU_COUNT(&kernels), 1);
  set_thread_share(1);
  const Cores cores = cores_of_a_helper();
  EXPECT_TRUE(CPU_EQUAL(&cores.before, &kernels));  // the cores that it would have had
  EXPECT_EQ(CPU_COUNT(&cores.after), places - 1);
  cpu_set_t both;
  CPU_AND(&both, &cores.after, &kernels);
  EXPECT_EQ(CPU_COUNT(&both), 0);
}

}  // namespace
}  // namespace ngd::device
