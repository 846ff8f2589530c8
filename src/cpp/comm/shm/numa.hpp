// SPDX-License-Identifier: Apache-2.0
// NUMA nodes: the node of a rank, and the nodes of a group.
#pragma once

#include <sched.h>

#include <string>
#include <vector>

namespace ngd::comm::shm {

inline constexpr int kNoNode = -1;  // several nodes, not known, or NGD_NUMA_NODE turns nodes off
inline constexpr const char* kNodeFolder = "/sys/devices/system/node";  // the folder of Linux

// Return the NUMA node that has all of `cores`, or kNoNode.
int node_of(const cpu_set_t& cores, const std::string& folder = kNodeFolder);

// Return the node of a rank that runs on `cores`, or the node that NGD_NUMA_NODE sets.
int chosen_node(const cpu_set_t& cores, const std::string& folder = kNodeFolder);

// `count` nodes of `ranks` consecutive ranks each. One node if more would gain nothing.
struct Nodes {
  int count = 1;
  int ranks = 1;
};

// Return the nodes of a group from the node of each rank. There are several nodes only if each has
// the same number of consecutive ranks, and that is a power of two above 1: then a node's tree of
// sums is a subtree of the canonical one.
Nodes nodes_of(const std::vector<int>& node_of_rank);

}  // namespace ngd::comm::shm
