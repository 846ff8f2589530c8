// SPDX-License-Identifier: Apache-2.0
// Tests the generator against known answers, and the distributions against a scalar implementation
// of the definition in fallback/random.cpp.
#include <array>
#include <numbers>

#include "harness.hpp"

namespace ngd::kernels::test {
namespace {

// Philox 4x32-10 of one block, word by word.
std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> c, std::uint32_t k0,
                                    std::uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = 0xD2511F53ull * c[0], p1 = 0xCD9E8D57ull * c[2];
    c = {static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<std::uint32_t>(p1),
         static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<std::uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

std::uint32_t word(std::uint64_t seed, std::uint64_t offset, std::uint64_t i) {
  const std::uint64_t block = i / 4;
  return philox({static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                 static_cast<std::uint32_t>(offset), static_cast<std::uint32_t>(offset >> 32)},
                static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32))[i % 4];
}

Tensor state(std::uint64_t seed, std::uint64_t offset) {
  Tensor result(DType::U64, {2});
  result.set(0, seed);
  result.set(1, offset);
  return result;
}

Tensor draw(const char* op, DType dtype, std::int64_t n, std::uint64_t seed = 0x123456789abcdefull,
            std::uint64_t offset = 0xfedcba9876543210ull) {
  return run(op, {state(seed, offset)}, {{dtype, {n}}}, {})[0];
}

// Random123's kat_vectors, philox4x32-10, with counter and key 0. Words 2 and 3 of the counter are
// the stream, so a counter of ones is block 2^64 - 1, which no tensor reaches.
TEST(Random, GivesTheKnownAnswers) {
  const Tensor zero = draw("random_bits", DType::U32, 4, 0, 0);
  const std::vector<std::uint32_t> expected{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u};
  for (std::int64_t i = 0; i < 4; ++i)
    EXPECT_EQ(static_cast<std::uint32_t>(zero.integer(i)), expected[static_cast<std::size_t>(i)]);
  // The implementation that the other tests use, compared with the other two vectors.
  const std::array<std::uint32_t, 4> ones{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu};
  EXPECT_EQ(philox({~0u, ~0u, ~0u, ~0u}, ~0u, ~0u), ones);
  const std::array<std::uint32_t, 4> pi{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u};
  EXPECT_EQ(philox({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}, 0xa4093822u, 0x299f31d0u),
            pi);
}

constexpr std::uint64_t kSeed = 0x123456789abcdefull, kOffset = 0xfedcba9876543210ull;

TEST(Random, GivesBitsOfEveryIntegerDtype) {
  for (const DType dtype : all_dtypes()) {
    if (is_floating(dtype)) continue;
    for (const std::int64_t n : {0, 1, 3, 64, 1023, 5001}) {
      const Tensor bits = draw("random_bits", dtype, n);
      for (std::int64_t i = 0; i < n; ++i) {
        const auto u = static_cast<std::uint64_t>(i);
        std::uint64_t value = word(kSeed, kOffset, u);
        if (size_of(dtype) == 8)
          value =
              std::uint64_t{word(kSeed, kOffset, 2 * u + 1)} << 32 | word(kSeed, kOffset, 2 * u);
        if (dtype == DType::Bool) value &= 1;
        Tensor expected(dtype, {1});
        expected.set(0, value);
        ASSERT_EQ(bits.integer(i), expected.integer(0)) << to_string(bits.type());
      }
    }
  }
}

double uniform(DType dtype, std::uint64_t i) {
  const auto w = [](std::uint64_t k) { return word(kSeed, kOffset, k); };
  switch (dtype) {
    case DType::F16:
      return (w(i) >> 21) * 0x1p-11;
    case DType::BF16:
      return (w(i) >> 24) * 0x1p-8;
    case DType::F32:
      return (w(i) >> 8) * 0x1p-24;
    default:
      return static_cast<double>((std::uint64_t{w(2 * i + 1)} << 32 | w(2 * i)) >> 11) * 0x1p-53;
  }
}

TEST(Random, IsUniformInEveryFloatDtype) {
  for (const DType dtype : {DType::F16, DType::BF16, DType::F32, DType::F64})
    for (const std::int64_t n : {0, 1, 5, 1024, 4099}) {
      const Tensor x = draw("random_uniform", dtype, n);
      for (std::int64_t i = 0; i < n; ++i) {
        ASSERT_EQ(x.at(i), uniform(dtype, static_cast<std::uint64_t>(i))) << to_string(x.type());
        ASSERT_LT(x.at(i), 1);
      }
    }
}

TEST(Random, NormalNumbersFollowBoxAndMuller) {
  for (const DType dtype : {DType::F16, DType::BF16, DType::F32, DType::F64})
    for (const std::int64_t n : {1, 2, 7, 1025, 4099}) {
      const DType source = dtype == DType::F64 ? DType::F64 : DType::F32;
      const Tensor x = draw("random_normal", dtype, n);
      for (std::int64_t i = 0; i < n; ++i) {
        const auto pair = static_cast<std::uint64_t>(i) / 2 * 2;
        const double radius = std::sqrt(-2 * std::log(1 - uniform(source, pair)));
        const double angle = 2 * std::numbers::pi * uniform(source, pair + 1);
        const double exact = radius * (i % 2 == 0 ? std::cos(angle) : std::sin(angle));
        Tensor expected(dtype, {1});
        expected.set(0, exact);
        ASSERT_NEAR(x.at(i), expected.at(0), 1e-14 * (dtype == DType::F64)) << to_string(x.type());
      }
    }
}

TEST(Random, MomentsOfTheNormal) {
  const Tensor x = draw("random_normal", DType::F32, 200000, 7, 0);
  double sum = 0, squares = 0, fourth = 0;
  for (std::int64_t i = 0; i < x.count(); ++i) {
    sum += x.at(i);
    squares += x.at(i) * x.at(i);
    fourth += std::pow(x.at(i), 4);
  }
  const auto n = static_cast<double>(x.count());
  EXPECT_NEAR(sum / n, 0, 0.01);
  EXPECT_NEAR(squares / n, 1, 0.015);
  EXPECT_NEAR(fourth / n, 3, 0.1);
}

TEST(Random, RejectsUnsupportedShapes) {
  const auto refused = [](const char* op, TensorType state, DType dtype) {
    return offer_of({op, {std::move(state)}, {{dtype, {4}}}, {}}).kernel == nullptr;
  };
  EXPECT_TRUE(refused("random_uniform", {DType::I64, {3}}, DType::F32));
  EXPECT_TRUE(refused("random_uniform", {DType::I32, {2}}, DType::F32));
  EXPECT_TRUE(refused("random_uniform", {DType::I64, {2}}, DType::I32));
  EXPECT_TRUE(refused("random_bits", {DType::I64, {2}}, DType::F32));
  EXPECT_FALSE(refused("random_normal", {DType::I64, {2}}, DType::BF16));
}

}  // namespace
}  // namespace ngd::kernels::test
