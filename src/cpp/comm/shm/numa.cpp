// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/numa.hpp"

#include <algorithm>
#include <bit>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <string_view>

namespace ngd::comm::shm {

namespace {

constexpr std::string_view kNode = "node";

// The cores of "0-3,8", as the kernel writes them.
cpu_set_t listed(const std::string& path) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  std::ifstream file(path);
  file.imbue(std::locale::classic());  // in which "1,2" are two numbers
  for (int first = 0; file >> first;) {
    int last = first;
    if (file.peek() == '-') file.ignore() >> last;
    for (int core = first; core <= std::min(last, CPU_SETSIZE - 1); ++core) CPU_SET(core, &cores);
    if (file.peek() == ',') file.ignore();
  }
  return cores;
}

// Of "node3"; kNoNode for what else lies there.
int number_of(const std::string& name) {
  int number = kNoNode;
  if (!name.starts_with(kNode)) return kNoNode;
  const char* end = name.data() + name.size();
  const auto parsed = std::from_chars(name.data() + kNode.size(), end, number);
  return parsed.ec == std::errc() && parsed.ptr == end ? number : kNoNode;
}

}  // namespace

int node_of(const cpu_set_t& cores, const std::string& folder) {
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    const int number = number_of(entry.path().filename().string());
    if (number == kNoNode) continue;
    const cpu_set_t here = listed(entry.path() / "cpulist");
    cpu_set_t both;
    CPU_AND(&both, &here, &cores);
    if (CPU_COUNT(&cores) > 0 && CPU_EQUAL(&both, &cores)) return number;
  }
  return kNoNode;
}

Nodes nodes_of(const std::vector<int>& node_of_rank) {
  const Nodes one{1, static_cast<int>(node_of_rank.size())};
  std::vector<int> nodes;  // of the blocks
  std::size_t ranks = 0;   // in the first of them
  while (ranks < node_of_rank.size() && node_of_rank[ranks] == node_of_rank[0]) ++ranks;
  if (ranks < 2 || !std::has_single_bit(ranks) || node_of_rank.size() % ranks != 0) return one;
  for (std::size_t r = 0; r < node_of_rank.size(); ++r) {
    const int node = node_of_rank[r];
    const bool begins = r % ranks == 0;
    if (node == kNoNode || (!begins && node != nodes.back())) return one;
    if (begins && std::find(nodes.begin(), nodes.end(), node) != nodes.end()) return one;
    if (begins) nodes.push_back(node);
  }
  return {static_cast<int>(nodes.size()), static_cast<int>(ranks)};
}

}  // namespace ngd::comm::shm
