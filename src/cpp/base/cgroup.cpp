// SPDX-License-Identifier: Apache-2.0
#include "base/cgroup.hpp"

#include <fstream>
#include <optional>

#include "base/number.hpp"
#include "base/small_file.hpp"

namespace ngd {

namespace {

// Return true if the comma-separated list of a hierarchy ("cpu,cpuacct") contains the controller.
bool has_controller(std::string_view list, std::string_view controller) {
  while (true) {
    const auto comma = list.find(',');
    if (list.substr(0, comma) == controller) return true;
    if (comma == std::string_view::npos) return false;
    list.remove_prefix(comma + 1);
  }
}

// Return the number of cores that the CPU quota of a cgroup allows, quota / period, or 0 without a
// quota. cgroup v2 has both numbers in one file, such as "150000 100000"; the quota "max" means no
// quota. cgroup v1 has two files; the quota -1 means no quota.
double quota_of(const Cgroup& cgroup) {
  const auto divide = [](std::string_view quota, std::string_view period) {
    const auto used = parse_number<double>(quota), length = parse_number<double>(period);
    return used && length && *used > 0 && *length > 0 ? *used / *length : 0;
  };
  if (cgroup.is_unified) {
    SmallFile file((cgroup.folder + "/cpu.max").c_str());
    const std::string_view quota = file.next_word();
    return divide(quota, file.next_word());
  }
  return divide(SmallFile((cgroup.folder + "/cpu.cfs_quota_us").c_str()).next_word(),
                SmallFile((cgroup.folder + "/cpu.cfs_period_us").c_str()).next_word());
}

}  // namespace

void visit_enclosing_cgroups(std::string_view controller,
                             const std::function<void(const Cgroup&)>& visit,
                             const CgroupFiles& files) {
  std::ifstream membership(files.membership);
  for (std::string line; std::getline(membership, line);) {  // such as "4:cpu,cpuacct:/path"
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string_view controllers(line.data() + first + 1, second - first - 1);
    const bool is_unified = controllers.empty();
    if (!is_unified && !has_controller(controllers, controller)) continue;
    const std::string root = is_unified ? files.mount : files.mount + "/" + std::string(controller);
    std::string name = line.substr(second + 1);
    while (true) {
      while (!name.empty() && name.back() == '/') name.pop_back();
      visit({is_unified, root + name, name});
      if (name.empty()) break;
      name.resize(name.rfind('/') + 1);
    }
  }
}

double cgroup_cpu_quota(const CgroupFiles& files) {
  double lowest = 0;
  visit_enclosing_cgroups(
      "cpu",
      [&](const Cgroup& cgroup) {
        const double quota = quota_of(cgroup);
        if (quota > 0 && (lowest == 0 || quota < lowest)) lowest = quota;
      },
      files);
  return lowest;
}

}  // namespace ngd
