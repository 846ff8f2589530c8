// SPDX-License-Identifier: Apache-2.0
#include "base/attrs.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"

namespace ngd {
namespace {

using Numbers = std::vector<double>;
using Texts = std::vector<std::string>;
using Integers = std::vector<std::int64_t>;

TEST(Attrs, ListsKeepTheirValues) {
  Attrs attrs;
  attrs.set("scales", Numbers{0.1, 1e300, -0.0});
  attrs.set("post", Texts{"relu", ""});
  attrs.set("axes", Integers{1, -2});
  EXPECT_EQ(attrs.numbers("scales"), (Numbers{0.1, 1e300, -0.0}));
  EXPECT_EQ(attrs.texts("post"), (Texts{"relu", ""}));
  EXPECT_EQ(attrs.integers("axes"), (Integers{1, -2}));
  EXPECT_THROW(attrs.integers("scales"), Error);
  EXPECT_THROW(attrs.texts("axes"), Error);
  EXPECT_THROW(attrs.numbers("absent"), Error);
}

TEST(Attrs, IntegersAreNumbersIfADoubleHoldsThem) {
  constexpr std::int64_t kTooLarge = (std::int64_t{1} << 53) + 1;
  Attrs attrs;
  attrs.set("one", std::int64_t{1});
  attrs.set("list", Integers{1, 2});
  attrs.set("empty", Integers{});
  attrs.set("large", kTooLarge);
  attrs.set("larges", Integers{-kTooLarge});
  EXPECT_EQ(attrs.number("one"), 1.0);
  EXPECT_EQ(attrs.numbers("list"), (Numbers{1, 2}));
  EXPECT_EQ(attrs.numbers("empty"), Numbers{});
  EXPECT_EQ(attrs.texts("empty"), Texts{});
  EXPECT_THROW(attrs.number("large"), Error);
  EXPECT_THROW(attrs.numbers("larges"), Error);
}

}  // namespace
}  // namespace ngd
