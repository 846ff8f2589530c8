// SPDX-License-Identifier: Apache-2.0
// Memory nodes: which one a rank runs on, and how the ranks of a group lie on them.
#pragma once

#include <sched.h>

#include <string>
#include <vector>

namespace ngd::comm::shm {

inline constexpr int kNoNode = -1;  // several, or nobody knows, or nobody asks
inline constexpr const char* kNodeFolder = "/sys/devices/system/node";  // where Linux lists them

// The memory node that has all of `cores`, or kNoNode.
int node_of(const cpu_set_t& cores, const std::string& folder = kNodeFolder);

// The node that this rank of these cores is on, as NGD_NUMA_NODE asks.
int chosen_node(const cpu_set_t& cores, const std::string& folder = kNodeFolder);

// `count` nodes of `ranks` consecutive ranks each; one node where there is nothing to be gained.
struct Nodes {
  int count = 1;
  int ranks = 1;
};

// How ranks lie, from the node of each. Several nodes only where each has the same number of ranks,
// in one block, and that is a power of two above 1: then a node's tree of sums is a subtree of the
// canonical one.
Nodes nodes_of(const std::vector<int>& node_of_rank);

}  // namespace ngd::comm::shm
