// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/headroom.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <initializer_list>
#include <string_view>

#include "base/error.hpp"

namespace ngd::comm::shm {

namespace {

constexpr std::uint64_t kNone = ~std::uint64_t{0};

// A file with one number, or "max"; kNone where there is no such file.
std::uint64_t number_in(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t number = 0;
  return file >> number ? number : kNone;
}

// The sum of some lines of a file of names and numbers.
std::uint64_t sum_of(const std::string& path, std::initializer_list<std::string_view> names) {
  std::ifstream file(path);
  std::string name, rest;
  std::uint64_t number = 0, sum = 0;
  while (file >> name >> number && std::getline(file, rest))
    if (std::find(names.begin(), names.end(), name) != names.end()) sum += number;
  return sum;
}

// How the files of a version are called.
struct Version {
  std::string_view controllers;  // of the line in /proc/self/cgroup
  std::string folder, limit, usage;
  std::initializer_list<std::string_view> reclaimable;
  std::string swap_limit, swap_usage;  // v1 limits memory and swap together
};

const Version kVersions[] = {{"",
                              "/sys/fs/cgroup",
                              "memory.max",
                              "memory.current",
                              {"active_file", "inactive_file"},
                              "memory.swap.max",
                              "memory.swap.current"},
                             {"memory",
                              "/sys/fs/cgroup/memory",
                              "memory.limit_in_bytes",
                              "memory.usage_in_bytes",
                              {"total_active_file", "total_inactive_file"},
                              "",
                              ""}};

void bound_by(const Version& version, const std::string& path, std::uint64_t free_swap,
              Headroom& least) {
  const std::string folder = version.folder + path + "/";
  const std::uint64_t limit = number_in(folder + version.limit);
  const std::uint64_t usage = number_in(folder + version.usage);
  if (limit == kNone || usage == kNone || limit >= std::uint64_t{1} << 60) return;
  std::uint64_t swap = 0;
  if (free_swap > 0 && !version.swap_limit.empty()) {
    const std::uint64_t most = number_in(folder + version.swap_limit);
    const std::uint64_t used = number_in(folder + version.swap_usage);
    swap = used == kNone ? 0 : std::min(free_swap, most - std::min(most, used));
  }
  const std::uint64_t caches = sum_of(folder + "memory.stat", version.reclaimable);
  const std::uint64_t taken = usage - std::min(usage, caches);
  const std::uint64_t bytes = limit - std::min(limit, taken) + swap;
  if (bytes < least.bytes)
    least = {bytes,
             concat("the memory cgroup ", path.empty() ? "/" : path, " (", limit >> 20, " MiB)")};
}

}  // namespace

Headroom headroom() {
  constexpr std::uint64_t kKiB = 1024;
  const std::uint64_t free_swap = sum_of("/proc/meminfo", {"SwapFree:"}) * kKiB;
  Headroom least;
  if (const auto available = sum_of("/proc/meminfo", {"MemAvailable:"}); available > 0)
    least = {available * kKiB + free_swap, "this machine's memory"};
  std::ifstream own("/proc/self/cgroup");
  for (std::string line; std::getline(own, line);) {
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string_view controllers(line.data() + first + 1, second - first - 1);
    for (const Version& version : kVersions) {
      if (controllers != version.controllers) continue;
      // In a container the path may be the host's, and what is ours the root.
      std::string path = line.substr(second + 1);
      for (;; path.resize(path.rfind('/'))) {
        while (!path.empty() && path.back() == '/') path.pop_back();
        bound_by(version, path, free_swap, least);
        if (path.empty()) break;
      }
    }
  }
  return least;
}

std::string address_space_limit(std::uint64_t bytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "";
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const std::uint64_t used = pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::uint64_t left = limit.rlim_cur - std::min<std::uint64_t>(limit.rlim_cur, used);
  if (bytes <= left) return "";
  return concat("RLIMIT_AS allows this process ", limit.rlim_cur >> 20, " MiB, of which ",
                left >> 20, " MiB are left. Raise it (ulimit -v), equally on all ranks");
}

}  // namespace ngd::comm::shm
