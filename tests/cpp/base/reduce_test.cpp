// SPDX-License-Identifier: Apache-2.0
#include "base/reduce.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "reference.hpp"

namespace ngd {
namespace {

constexpr Combine kCombines[] = {Combine::Sum, Combine::Min, Combine::Max, Combine::Prod};
constexpr std::size_t kCounts[] = {0, 1, 7, 64, 1023, 1024, 1025, 3001};

bool makes_sense(Combine combine, DType dtype) {
  return !(dtype == DType::Bool && combine == Combine::Sum);
}

class ReduceTest : public testing::TestWithParam<DType> {};

TEST_P(ReduceTest, FollowsTheTreeBitForBit) {
  const DType dtype = GetParam();
  for (const int n : {1, 2, 3, 4, 5, 7, 8, 9, 16, 17})
    for (const std::size_t count : kCounts) {
      const auto inputs = reference::random_inputs(dtype, n, count, static_cast<unsigned>(n));
      std::vector<const void*> sources;
      for (const auto& input : inputs) sources.push_back(input.data());
      for (const Combine combine : kCombines) {
        if (!makes_sense(combine, dtype)) continue;
        for (const double divisor : {1.0, 3.0}) {
          if (divisor != 1.0 && (!is_floating(dtype) || combine != Combine::Sum)) continue;
          reference::Bytes got(count * size_of(dtype) + 1, std::byte{0x5a});
          reduce(combine, dtype, sources.data(), n, got.data(), count, divisor);
          const auto want = reference::tree(combine, dtype, inputs, count, divisor);
          ASSERT_TRUE(std::equal(want.begin(), want.end(), got.begin()))
              << name_of(dtype) << " combine " << static_cast<int>(combine) << " n " << n
              << " count " << count << " divisor " << divisor;
          ASSERT_EQ(got.back(), std::byte{0x5a}) << "wrote past the end";
        }
      }
    }
}

double number(double value) { return value; }
double number(float value) { return value; }
double number(BFloat16 value) { return static_cast<float>(value); }
double number(Float16 value) { return static_cast<float>(value); }

template <class T>
T from_number(double value) {
  if constexpr (std::is_floating_point_v<T>)
    return static_cast<T>(value);
  else
    return T(static_cast<float>(value));
}

template <class T>
void expect_means(DType dtype, int n, const std::vector<std::vector<double>>& rows,
                  const std::vector<double>& wanted) {
  const std::size_t count = 1500;  // more than a block, with the rows at an offset in it
  for (const bool in_place : {false, true}) {
    std::vector<std::vector<T>> inputs(static_cast<std::size_t>(n));
    for (int r = 0; r < n; ++r)
      for (std::size_t i = 0; i < count; ++i)
        inputs[static_cast<std::size_t>(r)].push_back(
            static_cast<T>(static_cast<float>(r) + static_cast<float>(i % 7)));
    for (std::size_t k = 0; k < rows.size(); ++k)
      for (int r = 0; r < n; ++r)
        inputs[static_cast<std::size_t>(r)][1000 + k * 9] =
            from_number<T>(rows[k][static_cast<std::size_t>(r)]);
    std::vector<const void*> sources;
    for (const auto& input : inputs) sources.push_back(input.data());
    std::vector<T> fresh(count);
    T* out = in_place ? inputs.back().data() : fresh.data();
    reduce(Combine::Sum, dtype, sources.data(), n, out, count, n);
    for (std::size_t k = 0; k < rows.size(); ++k) {
      const double got = number(out[1000 + k * 9]), want = number(from_number<T>(wanted[k]));
      const double ulp = std::abs(want) * std::numeric_limits<double>::epsilon();
      EXPECT_TRUE(got == want || std::abs(got - want) <= ulp)
          << name_of(dtype) << " n " << n << " row " << k << ": " << got << " instead of " << want;
    }
    EXPECT_EQ(number(out[8]), (n - 1) / 2.0 + 1.0);
  }
}

// m is the largest finite number of a dtype: sums of it overflow, means of it do not.
template <class T>
void expect_means_of_largest(DType dtype, double m) {
  const double inf = std::numeric_limits<double>::infinity();
  expect_means<T>(dtype, 2, {{m, m}, {-m, -m}, {m, m / 2}, {inf, m}, {m, -m}},
                  {m, -m, m / 4 * 3, inf, 0});
  expect_means<T>(dtype, 3, {{m, m, m}, {-m, -m, -m}, {m, m, -m}, {m, m, -inf}},
                  {m, -m, m / 3, -inf});
  expect_means<T>(dtype, 4, {{m, m, -m, -m}, {m, m, m, m}, {m, m, 0, 0}, {-m, -m, 0, 0}},
                  {0, m, m / 2, -m / 2});
  std::vector<double> five(5, m), seventeen(17, -m);
  expect_means<T>(dtype, 5, {five}, {m});
  expect_means<T>(dtype, 17, {seventeen}, {-m});
}

TEST(Mean, IsFiniteWhereverItIsRepresentable) {
  expect_means_of_largest<float>(DType::F32, std::numeric_limits<float>::max());
  expect_means_of_largest<double>(DType::F64, std::numeric_limits<double>::max());
  const double largest_bf16 = std::bit_cast<float>(std::uint32_t{0x7f7f0000});
  expect_means<BFloat16>(DType::BF16, 2, {{largest_bf16, largest_bf16}}, {largest_bf16});
  expect_means<BFloat16>(DType::BF16, 4, {std::vector<double>(4, -largest_bf16)}, {-largest_bf16});
  expect_means<Float16>(DType::F16, 3, {{65504, 65504, 65504}}, {65504});
}

TEST_P(ReduceTest, DestinationsMayBeSources) {
  const DType dtype = GetParam();
  const std::size_t count = 2500;
  for (const int n : {2, 3, 4, 6}) {
    auto inputs = reference::random_inputs(dtype, n, count, 5);
    const auto want = reference::tree(Combine::Max, dtype, inputs, count, 1.0);
    std::vector<const void*> sources;
    std::vector<void*> destinations;
    for (auto& input : inputs) {
      sources.push_back(input.data());
      destinations.push_back(input.data());
    }
    reduce_to_many(Combine::Max, dtype, sources.data(), n, destinations.data(), n, count);
    for (const auto& input : inputs)
      ASSERT_EQ(std::memcmp(input.data(), want.data(), want.size()), 0) << "n " << n;
  }
}

TEST_P(ReduceTest, DoesNotDependOnTheDivisionOfTheRange) {
  const DType dtype = GetParam();
  if (dtype == DType::Bool) return;
  const std::size_t count = 4001, element = size_of(dtype);
  const auto inputs = reference::random_inputs(dtype, 3, count, 6);
  std::vector<std::byte> whole(count * element), pieces(count * element);
  const void* sources[3] = {inputs[0].data(), inputs[1].data(), inputs[2].data()};
  reduce(Combine::Sum, dtype, sources, 3, whole.data(), count);
  for (std::size_t begin = 0, length = 1; begin < count; begin += length, length = length * 2 + 1) {
    const std::size_t piece = std::min(length, count - begin);
    const void* parts[3];
    for (int r = 0; r < 3; ++r)
      parts[r] = inputs[static_cast<std::size_t>(r)].data() + begin * element;
    reduce(Combine::Sum, dtype, parts, 3, pieces.data() + begin * element, piece);
  }
  EXPECT_EQ(std::memcmp(whole.data(), pieces.data(), whole.size()), 0);
}

// Large results are stored with other instructions if their alignment allows.
TEST_P(ReduceTest, LargeResultsAreStoredCompletelyAtAnyAlignment) {
  const DType dtype = GetParam();
  const std::size_t element = size_of(dtype), count = (std::size_t{9} << 20) / element + 5;
  const auto inputs = reference::random_inputs(dtype, 2, 4096 / element, 8);
  reference::Bytes sources[2];
  for (int r = 0; r < 2; ++r) {
    sources[r].resize(count * element);
    const auto& pattern = inputs[static_cast<std::size_t>(r)];
    for (std::size_t i = 0; i < sources[r].size(); ++i) sources[r][i] = pattern[i % pattern.size()];
  }
  const void* operands[] = {sources[0].data(), sources[1].data()};
  const auto want = reference::tree(Combine::Min, dtype, inputs, 4096 / element, 1.0);
  for (const std::size_t shift : {std::size_t{0}, element}) {
    reference::Bytes room[2];
    void* destinations[2];
    for (int j = 0; j < 2; ++j) {
      room[j].assign(count * element + 192, std::byte{0x5a});
      const auto address = reinterpret_cast<std::uintptr_t>(room[j].data());
      destinations[j] = room[j].data() + (64 - address % 64) + shift;
    }
    reduce_to_many(Combine::Min, dtype, operands, 2, destinations, 2, count);
    for (const void* destination : destinations) {
      const auto* got = static_cast<const std::byte*>(destination);
      for (std::size_t i = 0; i < count * element; i += want.size()) {
        const std::size_t bytes = std::min(want.size(), count * element - i);
        ASSERT_EQ(std::memcmp(got + i, want.data(), bytes), 0) << "shift " << shift;
      }
      ASSERT_EQ(got[count * element], std::byte{0x5a}) << "wrote past the end";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllTypes, ReduceTest, testing::ValuesIn(reference::kAllTypes),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(Reduce, NanWinsOverEverythingInMinAndMax) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> a(100, kNan), b(100, -1.0f);
  for (const Combine combine : {Combine::Min, Combine::Max})
    for (const bool nan_first : {true, false}) {
      const void* sources[] = {nan_first ? a.data() : b.data(), nan_first ? b.data() : a.data()};
      std::vector<float> out(100);
      reduce(combine, DType::F32, sources, 2, out.data(), out.size());
      for (const float value : out) ASSERT_TRUE(std::isnan(value));
    }
}

// The value of a 16-bit float in double, by its definition (IEEE 754-2019, 3.4).
double half_value(DType dtype, std::uint16_t bits) {
  const int mantissa_bits = dtype == DType::F16 ? 10 : 7;
  const int bias = dtype == DType::F16 ? 15 : 127;
  const int exponent = (bits & 0x7fff) >> mantissa_bits;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                    : std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  return bits & 0x8000 ? -magnitude : magnitude;
}

class HalfTest : public testing::TestWithParam<DType> {
 protected:
  std::uint16_t infinity() const { return GetParam() == DType::F16 ? 0x7c00 : 0x7f80; }
};

TEST_P(HalfTest, WidensEveryValueExactlyAndNarrowsItBack) {
  std::vector<std::uint16_t> all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  std::vector<float> wide(all.size());
  std::vector<std::uint16_t> back(all.size());
  widen(GetParam(), all.data(), wide.data(), all.size());
  narrow(GetParam(), wide.data(), back.data(), wide.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::uint16_t magnitude = all[i] & 0x7fff;
    if (magnitude > infinity()) {
      ASSERT_TRUE(std::isnan(wide[i])) << i;
      ASSERT_GT(back[i] & 0x7fff, infinity()) << i;
    } else {
      ASSERT_EQ(back[i], all[i]);
      if (magnitude == infinity())
        ASSERT_TRUE(std::isinf(wide[i]));
      else
        ASSERT_EQ(static_cast<double>(wide[i]), half_value(GetParam(), all[i])) << i;
    }
  }
}

TEST_P(HalfTest, RoundsToNearestAndTiesToEven) {
  std::vector<float> values;
  std::vector<std::uint16_t> want;
  for (std::uint16_t low = 0; low + 1 < infinity(); ++low) {
    const double a = half_value(GetParam(), low), b = half_value(GetParam(), low + 1);
    const auto middle = static_cast<float>((a + b) / 2);
    if (static_cast<double>(middle) != (a + b) / 2) continue;  // no float is half-way between them
    const std::uint16_t even = low % 2 == 0 ? low : low + 1;
    values.push_back(middle);
    want.push_back(even);
    values.push_back(std::nextafter(middle, 0.0f));
    want.push_back(low);
    values.push_back(std::nextafter(middle, std::numeric_limits<float>::infinity()));
    want.push_back(low + 1);
  }
  ASSERT_GT(values.size(), 50000u);
  std::vector<std::uint16_t> got(values.size());
  narrow(GetParam(), values.data(), got.data(), values.size());
  for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], want[i]) << values[i];
}

INSTANTIATE_TEST_SUITE_P(Halves, HalfTest, testing::Values(DType::F16, DType::BF16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace ngd
