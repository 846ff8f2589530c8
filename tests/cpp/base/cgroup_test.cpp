// SPDX-License-Identifier: Apache-2.0
#include "base/cgroup.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace ngd {
namespace {

// A folder with copies of the kernel's files.
class PosedCgroups : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::remove_all(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void write(const std::string& name, const std::string& text) {
    const std::filesystem::path path = folder_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  std::vector<std::string> visited(std::string_view controller) {
    std::vector<std::string> names;
    visit_enclosing_cgroups(
        controller, [&](const Cgroup& cgroup) { names.push_back(cgroup.name); }, files());
    return names;
  }
  CgroupFiles files() const { return {folder_ / "membership", folder_ / "mount"}; }

 private:
  const std::filesystem::path folder_ = testing::TempDir() + "ngd-cgroups";
};

TEST_F(PosedCgroups, LowestUnifiedQuotaCounts) {
  write("membership", "0::/system.slice/slurm/job_7\n");
  write("mount/system.slice/slurm/job_7/cpu.max", "max 100000\n");
  write("mount/system.slice/slurm/cpu.max", "150000 100000\n");
  write("mount/system.slice/cpu.max", "400000 100000\n");
  EXPECT_EQ(cgroup_cpu_quota(files()), 1.5);
  EXPECT_EQ(visited("cpu"), (std::vector<std::string>{"/system.slice/slurm/job_7",
                                                      "/system.slice/slurm", "/system.slice", ""}));
}

TEST_F(PosedCgroups, QuotaOfVersion1IsFoundBelowTheRoot) {
  write("membership", "5:memory:/\n4:cpu,cpuacct:/job/step\n0::/\n");
  write("mount/cpu/cpu.cfs_quota_us", "-1\n");
  write("mount/cpu/cpu.cfs_period_us", "100000\n");
  write("mount/cpu/job/cpu.cfs_quota_us", "50000\n");
  write("mount/cpu/job/cpu.cfs_period_us", "100000\n");
  write("mount/cpu/job/step/cpu.cfs_quota_us", "-1\n");
  write("mount/cpu/job/step/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cgroup_cpu_quota(files()), 0.5);
}

TEST_F(PosedCgroups, AContainerSeesItsOwnRootOnly) {
  write("membership", "0::/docker/0123456789ab\n");
  write("mount/cpu.max", "200000 100000\n");
  EXPECT_EQ(cgroup_cpu_quota(files()), 2);
}

TEST_F(PosedCgroups, MissingFilesMeanNoQuota) {
  EXPECT_EQ(cgroup_cpu_quota(files()), 0);
  write("membership", "nonsense\n0::/\n");
  EXPECT_EQ(cgroup_cpu_quota(files()), 0);
  write("mount/cpu.max", "max 100000\n");
  EXPECT_EQ(cgroup_cpu_quota(files()), 0);
  EXPECT_EQ(visited("memory"), std::vector<std::string>{""});
}

}  // namespace
}  // namespace ngd
