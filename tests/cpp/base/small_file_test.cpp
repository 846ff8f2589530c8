// SPDX-License-Identifier: Apache-2.0
#include "base/small_file.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace ngd {
namespace {

class Written : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }
  SmallFile file(const std::string& text) {
    std::ofstream(path_) << text;
    return SmallFile(path_.c_str());
  }
  const std::filesystem::path path_ = testing::TempDir() + "ngd-small-file";
};

TEST_F(Written, IsReadWordByWord) {
  SmallFile quota = file("max 100000\n");
  EXPECT_EQ(quota.text(), "max 100000\n");
  EXPECT_EQ(quota.next_word(), "max");
  EXPECT_EQ(quota.next_word(), "100000");
  EXPECT_EQ(quota.next_word(), "");
  EXPECT_EQ(quota.next_word(), "");
}

TEST_F(Written, MayBeEmptyOrLong) {
  EXPECT_EQ(file("").next_word(), "");
  EXPECT_EQ(file(" \n\t").next_word(), "");
  EXPECT_EQ(file(std::string(10'000, 'x')).text().size(), 4096u);
}

TEST(SmallFile, MayBeMissing) { EXPECT_EQ(SmallFile("/nowhere/at/all").text(), ""); }

}  // namespace
}  // namespace ngd
