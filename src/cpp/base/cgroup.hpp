// SPDX-License-Identifier: Apache-2.0
// The control groups (cgroups) that enclose this process. Each of them may have a limit, and the
// lowest limit counts.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace ngd {

struct Cgroup {
  bool is_unified;     // of cgroup v2, where all controllers share one hierarchy
  std::string folder;  // holds its files, for example /sys/fs/cgroup/cpu/slurm/job_7
  std::string name;    // its path in the hierarchy, "" for the root
};

// Where the kernel shows cgroups. Tests pose other files.
struct CgroupFiles {
  std::string membership = "/proc/self/cgroup";
  std::string mount = "/sys/fs/cgroup";
};

// Calls `visit` with the cgroup of this process in the hierarchy of `controller` ("cpu", "memory")
// and with each cgroup that encloses it, innermost first. If the process sees another root than
// /proc/self/cgroup names (a container), the inner folders do not exist and the last one visited,
// the root, is the container's.
void visit_enclosing_cgroups(std::string_view controller,
                             const std::function<void(const Cgroup&)>& visit,
                             const CgroupFiles& files = {});

// The cores that the CPU quotas of the enclosing cgroups allow: the lowest quota divided by its
// period. 0 = no quota.
double cgroup_cpu_quota(const CgroupFiles& files = {});

}  // namespace ngd
