// SPDX-License-Identifier: Apache-2.0
// The control groups (cgroups) that enclose this process. Each of them may have a limit, and the
// lowest limit applies.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace ngd {

struct Cgroup {
  bool is_unified;     // cgroup v2: all controllers share one hierarchy
  std::string folder;  // has the cgroup's files, for example /sys/fs/cgroup/cpu/slurm/job_7
  std::string name;    // its path in the hierarchy, "" for the root
};

// The paths at which the kernel shows cgroups: `membership` lists the cgroups of this process, and
// `mount` is the folder of all cgroups. Tests use other paths.
struct CgroupFiles {
  std::string membership = "/proc/self/cgroup";
  std::string mount = "/sys/fs/cgroup";
};

// Call `visit` with the cgroup of this process in the hierarchy of `controller` ("cpu", "memory"),
// then with each cgroup that encloses it, innermost first. The last one is the root of the mounted
// hierarchy.
//
// In a container, the mounted hierarchy may begin at the container's cgroup, although the paths in
// /proc/self/cgroup begin at the host's root cgroup. Then the folders of the first cgroups do not
// exist below the mount, so a caller finds no files there. The last one is the container's cgroup.
void visit_enclosing_cgroups(std::string_view controller,
                             const std::function<void(const Cgroup&)>& visit,
                             const CgroupFiles& files = {});

// Return the number of cores that the CPU quotas of the enclosing cgroups allow: the lowest quota,
// divided by its period. 0 = no quota.
double cgroup_cpu_quota(const CgroupFiles& files = {});

}  // namespace ngd
