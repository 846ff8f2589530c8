// SPDX-License-Identifier: Apache-2.0
// Tests which NUMA node a rank runs on, and when a group uses the algorithm for NUMA nodes.
#include "comm/shm/numa.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace ngd::comm::shm {
namespace {

cpu_set_t cores(const std::vector<int>& numbers) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int number : numbers) CPU_SET(number, &set);
  return set;
}

// A folder like the kernel's, of a machine with four nodes, one of which has only memory.
class NodeFolder : public testing::Test {
 protected:
  void SetUp() override {
    for (const auto& [name, text] : {std::pair{"node0", "0-3,16-19\n"},
                                     {"node1", "4-7,20\n"},
                                     {"node10", "9,1023\n"},
                                     {"node2", "\n"},
                                     {"nodeX", "30\n"},
                                     {"node", "31\n"},
                                     {"power", "32\n"}}) {
      std::filesystem::create_directories(folder_ / name);
      std::ofstream(folder_ / name / "cpulist") << text;
    }
    std::ofstream(folder_ / "possible") << "0-2\n";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  int node_with(const std::vector<int>& numbers) const { return node_of(cores(numbers), folder_); }

  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("ngd-numa_test-" + std::to_string(::getpid()));
};

TEST_F(NodeFolder, AllCoresOfANodeAreOnTheNode) {
  EXPECT_EQ(node_with({0}), 0);
  EXPECT_EQ(node_with({1, 3, 17, 19}), 0);
  EXPECT_EQ(node_with({4, 5, 6, 7, 20}), 1);
  EXPECT_EQ(node_with({9}), 10);
  EXPECT_EQ(node_with({1023}), 10);
}

TEST_F(NodeFolder, CoresOfSeveralNodesOrOfNoneHaveNoNode) {
  for (const auto& numbers :
       std::vector<std::vector<int>>{{3, 4}, {0, 1, 9}, {0, 8}, {8}, {21}, {30}, {31}, {32}, {}})
    EXPECT_EQ(node_with(numbers), kNoNode) << testing::PrintToString(numbers);
}

TEST_F(NodeFolder, ARankHasNoNodeUnlessItIsAsked) {
  const auto chosen = [&](const char* asked) {
    ::setenv("NGD_NUMA_NODE", asked, 1);
    const int node = chosen_node(cores({4, 5}), folder_);
    ::unsetenv("NGD_NUMA_NODE");
    return node;
  };
  ::unsetenv("NGD_NUMA_NODE");
  EXPECT_EQ(chosen_node(cores({4, 5}), folder_), kNoNode);
  EXPECT_EQ(chosen(""), kNoNode);
  EXPECT_EQ(chosen("auto"), 1);
  EXPECT_EQ(chosen("7"), 7);
}

TEST(NodeOf, AKernelWithoutNodesGivesNone) {
  EXPECT_EQ(node_of(cores({0}), "/there/is/no/such/folder"), kNoNode);
}

TEST(NodesOf, CountsEqualBlocksOfAPowerOfTwo) {
  struct Row {
    std::vector<int> nodes;
    int count, ranks;
  };
  for (const Row& row : std::vector<Row>{{{0, 0, 1, 1}, 2, 2},
                                         {{7, 7, 3, 3}, 2, 2},
                                         {{0, 0, 1, 1, 2, 2}, 3, 2},
                                         {{1, 1, 1, 1, 0, 0, 0, 0}, 2, 4}}) {
    const Nodes nodes = nodes_of(row.nodes);
    EXPECT_EQ(nodes.count, row.count) << testing::PrintToString(row.nodes);
    EXPECT_EQ(nodes.ranks, row.ranks) << testing::PrintToString(row.nodes);
  }
}

TEST(NodesOf, OtherPlacementsAreOneNode) {
  for (const auto& ranks : std::vector<std::vector<int>>{{0},
                                                         {-1},
                                                         {0, 0, 0, 0},
                                                         {0, 1},
                                                         {0, 1, 2, 3},
                                                         {0, 0, 0, 1, 1, 1},
                                                         {0, 1, 0, 1},
                                                         {0, 0, 1, 1, 0, 0},
                                                         {0, 0, 1},
                                                         {0, 0, 1, 1, 1, 1},
                                                         {0, 0, 0, 0, 1, 1},
                                                         {0, 0, 1, 2},
                                                         {-1, -1, -1, -1},
                                                         {0, 0, -1, -1},
                                                         {0, 0, 1, -1}}) {
    const Nodes nodes = nodes_of(ranks);
    EXPECT_EQ(nodes.count, 1) << testing::PrintToString(ranks);
    EXPECT_EQ(nodes.ranks, static_cast<int>(ranks.size()));
  }
}

}  // namespace
}  // namespace ngd::comm::shm
