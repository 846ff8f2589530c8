// SPDX-License-Identifier: Apache-2.0
// The NUMA node of a rank, and the division of the ranks of a group into NUMA nodes.
#pragma once

#include <sched.h>

#include <string>
#include <vector>

namespace ngd::comm::shm {

// The value for no NUMA node. A rank has no NUMA node if the environment variable NGD_NUMA_NODE is
// not set. If the variable is "auto", a rank has a NUMA node only if one node has all the cores
// that the rank may use.
inline constexpr int kNoNode = -1;
// where Linux describes the nodes
inline constexpr const char* kNodeFolder = "/sys/devices/system/node";

// Return the NUMA node that has all of `cores`; kNoNode if no node has them all.
int node_of(const cpu_set_t& cores, const std::string& folder = kNodeFolder);

// Return the NUMA node of a rank that may run on `cores`, as the environment variable NGD_NUMA_NODE
// says: "auto" = the node that has all of `cores` (node_of), a number = that node, not set =
// kNoNode.
int chosen_node(const cpu_set_t& cores, const std::string& folder = kNodeFolder);

// The division of a group into `count` NUMA nodes of `ranks` consecutive ranks each. If `count` is
// 1, reductions do not distinguish NUMA nodes.
struct Nodes {
  int count = 1;
  int ranks = 1;
};

// Return the division of a group into NUMA nodes. `node_of_rank`: the NUMA node of each rank, or
// kNoNode. If all nodes have the same number of consecutive ranks, and this number is a power of
// two above 1, return these nodes: each node's sums are then a subtree of the canonical order
// (base/reduce.hpp), so the results do not change. Otherwise return one node with all ranks.
Nodes nodes_of(const std::vector<int>& node_of_rank);

}  // namespace ngd::comm::shm
