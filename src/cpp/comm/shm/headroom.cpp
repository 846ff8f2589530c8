// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/headroom.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <initializer_list>
#include <string_view>

#include "base/cgroup.hpp"
#include "base/error.hpp"

namespace ngd::comm::shm {

namespace {

constexpr std::uint64_t kNone = ~std::uint64_t{0};

// Return the number in a file that has one number or "max"; kNone for "max", or if there is no such
// file.
std::uint64_t number_in(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t number = 0;
  return file >> number ? number : kNone;
}

// Return the sum of the numbers with the given names, in a file that has a name and a number per
// line.
std::uint64_t sum_of(const std::string& path, std::initializer_list<std::string_view> names) {
  std::ifstream file(path);
  std::string name, rest;
  std::uint64_t number = 0, sum = 0;
  while (file >> name >> number && std::getline(file, rest))
    if (std::find(names.begin(), names.end(), name) != names.end()) sum += number;
  return sum;
}

// The names of the files of a memory cgroup, for version 1 or version 2.
struct FileNames {
  std::string limit, usage;
  std::initializer_list<std::string_view> reclaimable;
  std::string swap_limit, swap_usage;  // "" for cgroup v1, which limits memory and swap together
};

const FileNames kUnifiedNames{"memory.max",
                              "memory.current",
                              {"active_file", "inactive_file"},
                              "memory.swap.max",
                              "memory.swap.current"};
const FileNames kVersion1Names{"memory.limit_in_bytes",
                               "memory.usage_in_bytes",
                               {"total_active_file", "total_inactive_file"},
                               "",
                               ""};

// Set `least` to the memory that is left in a cgroup, if that is less. `free_swap`: the free swap
// of the machine in bytes. It counts as memory, up to the swap limit of the cgroup.
void apply_limit(const Cgroup& cgroup, std::uint64_t free_swap, Headroom& least) {
  const FileNames& names = cgroup.is_unified ? kUnifiedNames : kVersion1Names;
  const std::string folder = cgroup.folder + "/";
  const std::uint64_t limit = number_in(folder + names.limit);
  const std::uint64_t usage = number_in(folder + names.usage);
  if (limit == kNone || usage == kNone || limit >= std::uint64_t{1} << 60) return;
  std::uint64_t swap = 0;
  if (free_swap > 0 && !names.swap_limit.empty()) {
    const std::uint64_t most = number_in(folder + names.swap_limit);
    const std::uint64_t used = number_in(folder + names.swap_usage);
    swap = used == kNone ? 0 : std::min(free_swap, most - std::min(most, used));
  }
  const std::uint64_t caches = sum_of(folder + "memory.stat", names.reclaimable);
  const std::uint64_t in_use = usage - std::min(usage, caches);
  const std::uint64_t bytes = limit - std::min(limit, in_use) + swap;
  if (bytes < least.bytes)
    least = {bytes, concat("the memory cgroup ", cgroup.name.empty() ? "/" : cgroup.name, " (",
                           limit >> 20, " MiB)")};
}

}  // namespace

Headroom headroom() {
  constexpr std::uint64_t kKiB = 1024;
  const std::uint64_t free_swap = sum_of("/proc/meminfo", {"SwapFree:"}) * kKiB;
  Headroom least;
  if (const auto available = sum_of("/proc/meminfo", {"MemAvailable:"}); available > 0)
    least = {available * kKiB + free_swap, "this machine's memory"};
  visit_enclosing_cgroups("memory",
                          [&](const Cgroup& cgroup) { apply_limit(cgroup, free_swap, least); });
  return least;
}

std::string address_space_limit(std::uint64_t bytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "";
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const std::uint64_t used = pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::uint64_t bytes_left = limit.rlim_cur - std::min<std::uint64_t>(limit.rlim_cur, used);
  if (bytes <= bytes_left) return "";
  return concat("RLIMIT_AS allows this process ", limit.rlim_cur >> 20, " MiB, of which ",
                bytes_left >> 20, " MiB are left. Raise it (ulimit -v), equally on all ranks");
}

}  // namespace ngd::comm::shm
