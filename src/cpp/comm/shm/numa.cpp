// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/numa.hpp"

#include <dirent.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <memory>
#include <string_view>

#include "base/config.hpp"
#include "base/error.hpp"
#include "base/small_file.hpp"

namespace ngd::comm::shm {

namespace {

constexpr std::string_view kNode = "node";

// Return the cores in a file of the kernel that lists cores, such as "0-3,8".
cpu_set_t parse_core_list(const std::string& path) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  SmallFile file(path.c_str());
  const std::string_view list = file.next_word();
  const char *at = list.data(), *end = at + list.size();
  const auto skip = [&](char wanted) { return at != end && *at == wanted && ++at; };
  for (int first = 0, last = 0;;) {
    const auto number = std::from_chars(at, end, first);
    if (number.ec != std::errc()) return cores;
    at = number.ptr;
    last = first;
    if (skip('-')) at = std::from_chars(at, end, last).ptr;
    for (int core = first; core <= std::min(last, CPU_SETSIZE - 1); ++core) CPU_SET(core, &cores);
    skip(',');
  }
}

// Return 3 for "node3", and kNoNode for other names.
int number_of(std::string_view name) {
  int number = kNoNode;
  if (!name.starts_with(kNode)) return kNoNode;
  const char* end = name.data() + name.size();
  const auto parsed = std::from_chars(name.data() + kNode.size(), end, number);
  return parsed.ec == std::errc() && parsed.ptr == end ? number : kNoNode;
}

}  // namespace

int node_of(const cpu_set_t& cores, const std::string& folder) {
  // Read the folder with readdir(): the directory iterator of the standard library would end the
  // process if memory is short.
  const auto close = [](DIR* open) { ::closedir(open); };
  const std::unique_ptr<DIR, decltype(close)> nodes(::opendir(folder.c_str()), close);
  if (nodes == nullptr || CPU_COUNT(&cores) == 0) return kNoNode;
  while (const dirent* entry = ::readdir(nodes.get())) {
    const int number = number_of(entry->d_name);
    if (number == kNoNode) continue;
    const cpu_set_t node_cores = parse_core_list(concat(folder, "/", entry->d_name, "/cpulist"));
    cpu_set_t common;
    CPU_AND(&common, &node_cores, &cores);
    if (CPU_EQUAL(&common, &cores)) return number;
  }
  return kNoNode;
}

int chosen_node(const cpu_set_t& cores, const std::string& folder) {
  const int requested = config::numa_node();
  return requested == config::kOwnNumaNode ? node_of(cores, folder) : requested;
}

Nodes nodes_of(const std::vector<int>& node_of_rank) {
  const Nodes one{1, static_cast<int>(node_of_rank.size())};
  std::vector<int> nodes;  // the NUMA node of each block. A block is `ranks` consecutive ranks
  std::size_t ranks = 0;   // the number of ranks, from rank 0 on, that have the node of rank 0
  while (ranks < node_of_rank.size() && node_of_rank[ranks] == node_of_rank[0]) ++ranks;
  if (ranks < 2 || !std::has_single_bit(ranks) || node_of_rank.size() % ranks != 0) return one;
  for (std::size_t r = 0; r < node_of_rank.size(); ++r) {
    const int node = node_of_rank[r];
    const bool is_first = r % ranks == 0;
    if (node == kNoNode || (!is_first && node != nodes.back())) return one;
    if (is_first && std::find(nodes.begin(), nodes.end(), node) != nodes.end()) return one;
    if (is_first) nodes.push_back(node);
  }
  return {static_cast<int>(nodes.size()), static_cast<int>(ranks)};
}

}  // namespace ngd::comm::shm
