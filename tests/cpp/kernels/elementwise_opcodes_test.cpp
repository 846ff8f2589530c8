// SPDX-License-Identifier: Apache-2.0
// Tests every elementwise opcode in every dtype, against scalar code.
#include <functional>
#include <limits>
#include <map>
#include <random>

#include "elementwise.hpp"
#include "harness.hpp"
#include "kernels/tiles/tiles.hpp"

namespace ngd::kernels::test {
namespace {

double rounded(DType dtype, double value) {
  if (dtype == DType::F16) return static_cast<float>(Float16(static_cast<float>(value)));
  if (dtype == DType::BF16) return static_cast<float>(BFloat16(static_cast<float>(value)));
  if (dtype == DType::F32) return static_cast<float>(value);
  return value;
}

double epsilon(DType dtype) {
  switch (dtype) {
    case DType::F16:
      return 0x1p-10;
    case DType::BF16:
      return 0x1p-7;
    case DType::F32:
      return 0x1p-23;
    default:
      return 0x1p-52;
  }
}

struct FloatCase {
  std::function<double(double, double)> expected;
  double low, high;
  bool binary;
};

const std::map<std::string, FloatCase>& float_cases() {
  static const std::map<std::string, FloatCase> cases = {
      {"add", {[](double a, double b) { return a + b; }, -9, 9, true}},
      {"subtract", {[](double a, double b) { return a - b; }, -9, 9, true}},
      {"multiply", {[](double a, double b) { return a * b; }, -9, 9, true}},
      {"divide", {[](double a, double b) { return a / b; }, -9, 9, true}},
      {"power", {[](double a, double b) { return std::pow(a, b); }, 0.25, 3, true}},
      {"maximum", {[](double a, double b) { return std::max(a, b); }, -9, 9, true}},
      {"minimum", {[](double a, double b) { return std::min(a, b); }, -9, 9, true}},
      {"remainder", {[](double a, double b) { return a - std::floor(a / b) * b; }, 0.3, 9, true}},
      {"floor_divide", {[](double a, double b) { return std::floor(a / b); }, 0.3, 9, true}},
      {"negative", {[](double a, double) { return -a; }, -9, 9, false}},
      {"abs", {[](double a, double) { return std::fabs(a); }, -9, 9, false}},
      {"sign", {[](double a, double) { return double((a > 0) - (a < 0)); }, -9, 9, false}},
      {"square", {[](double a, double) { return a * a; }, -9, 9, false}},
      {"reciprocal", {[](double a, double) { return 1 / a; }, 0.25, 9, false}},
      {"sqrt", {[](double a, double) { return std::sqrt(a); }, 0, 900, false}},
      {"rsqrt", {[](double a, double) { return 1 / std::sqrt(a); }, 0.01, 900, false}},
      {"exp", {[](double a, double) { return std::exp(a); }, -10, 10, false}},
      {"expm1", {[](double a, double) { return std::expm1(a); }, -10, 10, false}},
      {"log", {[](double a, double) { return std::log(a); }, 0.001, 100, false}},
      {"log1p", {[](double a, double) { return std::log1p(a); }, -0.9, 5, false}},
      {"tanh", {[](double a, double) { return std::tanh(a); }, -5, 5, false}},
      {"sigmoid", {[](double a, double) { return 1 / (1 + std::exp(-a)); }, -9, 9, false}},
      {"relu", {[](double a, double) { return a > 0 ? a : 0; }, -9, 9, false}},
      {"sin", {[](double a, double) { return std::sin(a); }, -9, 9, false}},
      {"cos", {[](double a, double) { return std::cos(a); }, -9, 9, false}},
      {"erf", {[](double a, double) { return std::erf(a); }, -4.5, 4.5, false}},
      {"floor", {[](double a, double) { return std::floor(a); }, -9, 9, false}},
      {"ceil", {[](double a, double) { return std::ceil(a); }, -9, 9, false}},
      {"round", {[](double a, double) { return std::nearbyint(a); }, -9, 9, false}},
      {"copy", {[](double a, double) { return a; }, -9, 9, false}},
  };
  return cases;
}

TEST(Elementwise, FloatsAreNearTheExactValue) {
  for (const auto& [opcode, c] : float_cases())
    for (const DType dtype : {DType::F16, DType::BF16, DType::F32, DType::F64})
      for (const std::int64_t n : {1, 7, 33, 1031}) {
        const Tensor a = random_floats(dtype, {n}, 1, c.low, c.high);
        const Tensor b = random_floats(dtype, {n}, 2, c.low, c.high);
        std::vector<Tensor> inputs{a};
        if (c.binary) inputs.push_back(b);
        const std::string program = opcode + ":" + name(dtype) + (c.binary ? " i0 i1" : " i0");
        const Tensor out = run_dense(program, inputs, {dtype}, {0})[0];
        for (std::int64_t i = 0; i < n; ++i) {
          const double expected = c.expected(a.at(i), b.at(i));
          // The error of remainder is relative to its operands, and not to its result.
          const double scale = opcode == "remainder" ? 9 : std::fabs(expected);
          ASSERT_NEAR(out.at(i), rounded(dtype, expected), 2.5 * epsilon(dtype) * scale + 1e-300)
              << program << " of " << a.at(i) << ", " << b.at(i);
        }
      }
}

// Return the largest error over all float32 numbers of a range, in units of the last place.
double largest_error(const std::string& opcode, float low, float high, std::int64_t n = 1 << 20) {
  Tensor a(DType::F32, {n});
  for (std::int64_t i = 0; i < n; ++i)
    a.set(i, low + (static_cast<double>(high) - low) * static_cast<double>(i) / double(n));
  const Tensor out = run_dense(opcode + ":f32 i0", {a}, {DType::F32}, {0})[0];
  double worst = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const double exact = float_cases().at(opcode).expected(a.at(i), 0);
    const auto nearest = static_cast<float>(std::fabs(exact));
    const double unit =
        std::nextafter(nearest, std::numeric_limits<float>::infinity()) - double(nearest);
    worst = std::max(worst, std::fabs(out.at(i) - exact) / unit);
  }
  return worst;
}

TEST(Elementwise, Float32FunctionsAreWithinTwoUlp) {
  EXPECT_LE(largest_error("exp", -87.3f, 88.7f), 1.5);
  EXPECT_LE(largest_error("exp", -1, 1), 1.5);
  EXPECT_LE(largest_error("expm1", -3, 3), 2.0);
  EXPECT_LE(largest_error("expm1", -1e-3f, 1e-3f), 1.5);
  EXPECT_LE(largest_error("expm1", 3, 88), 2.0);
  EXPECT_LE(largest_error("log", 1e-30f, 4), 1.5);
  EXPECT_LE(largest_error("log", 0.9f, 1.1f), 1.5);
  EXPECT_LE(largest_error("log", 4, 3e38f), 1.5);
  EXPECT_LE(largest_error("log1p", -0.99f, 3), 2.0);
  EXPECT_LE(largest_error("log1p", -1e-3f, 1e-3f), 1.5);
  EXPECT_LE(largest_error("tanh", -10, 10), 3.0);
  EXPECT_LE(largest_error("tanh", -0.1f, 0.1f), 3.0);
  EXPECT_LE(largest_error("sigmoid", -80, 20), 3.0);
  EXPECT_LE(largest_error("sin", -7, 7), 1.0);
  EXPECT_LE(largest_error("cos", -7, 7), 1.0);
  EXPECT_LE(largest_error("sin", -1e6f, 1e6f), 1.0);
  EXPECT_LE(largest_error("sin", 1e6f, 1e9f), 1.0);
  EXPECT_LE(largest_error("cos", -1e30f, 1e30f), 1.0);
  EXPECT_LE(largest_error("erf", -5, 5), 1.5);
  EXPECT_LE(largest_error("erf", -0.01f, 0.01f), 1.5);
}

TEST(Elementwise, SpecialValuesAreThoseOfTheMathLibrary) {
  const double inf = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> specials = {0.0, -0.0, inf,  -inf,  nan,   1e-40, -1e-40, 100, -100,
                                        200, -200, 3e38, -3e38, 1e-45, 88.72, 88.73,  -1};
  for (const char* opcode : {"exp", "expm1", "log", "log1p", "tanh", "sigmoid", "sqrt", "abs",
                             "erf", "floor", "ceil", "round", "sin", "cos", "negative"})
    for (const DType dtype : {DType::F32, DType::F64}) {
      const Tensor a(dtype, {static_cast<std::int64_t>(specials.size())}, specials);
      const Tensor out =
          run_dense(std::string(opcode) + ":" + name(dtype) + " i0", {a}, {dtype}, {0})[0];
      for (std::int64_t i = 0; i < a.count(); ++i) {
        const double exact = rounded(dtype, float_cases().at(opcode).expected(a.at(i), 0));
        const std::string what = concat(opcode, " of ", a.at(i), " in ", name(dtype));
        if (std::isnan(exact)) {
          EXPECT_TRUE(std::isnan(out.at(i))) << what << " is " << out.at(i);
        } else if (std::isinf(exact) || exact == 0) {
          EXPECT_EQ(out.at(i), exact) << what;
          // sigmoid may flush to zero if e^-x overflows.
        } else if (std::string(opcode) != "sigmoid" || std::fabs(exact) > 1e-37) {
          EXPECT_NEAR(out.at(i), exact,
                      3 * epsilon(dtype) * std::fabs(exact) + (dtype == DType::F32 ? 3e-45 : 0))
              << what;
        }
        if (exact == 0 && std::string(opcode) != "sigmoid") {
          EXPECT_EQ(std::signbit(out.at(i)), std::signbit(exact)) << what;
        }
      }
    }
}

TEST(Elementwise, MaximumAndMinimumPropagateNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const DType dtype : {DType::F16, DType::BF16, DType::F32, DType::F64}) {
    const Tensor a(dtype, {4}, std::vector<float>{1, nan, 3, nan});
    const Tensor b(dtype, {4}, std::vector<float>{2, 2, nan, nan});
    const auto out =
        run_dense(concat("maximum:", name(dtype), " i0 i1;minimum:", name(dtype), " i0 i1"), {a, b},
                  {dtype, dtype}, {0, 1});
    EXPECT_EQ(out[0].at(0), 2);
    EXPECT_EQ(out[1].at(0), 1);
    for (int i = 1; i < 4; ++i) {
      EXPECT_TRUE(std::isnan(out[0].at(i)));
      EXPECT_TRUE(std::isnan(out[1].at(i)));
    }
  }
}

// Integer operations in 128 bits, before wrapping.
using Wide = __int128;
Wide wrapping_product(Wide a, Wide b) {
  return static_cast<Wide>(static_cast<unsigned __int128>(a) * static_cast<unsigned __int128>(b));
}
Wide floor_quotient(Wide a, Wide b) {
  if (b == 0) return 0;
  const Wide q = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}

const std::map<std::string, std::function<Wide(Wide, Wide)>>& integer_cases() {
  static const std::map<std::string, std::function<Wide(Wide, Wide)>> cases = {
      {"add", [](Wide a, Wide b) { return a + b; }},
      {"subtract", [](Wide a, Wide b) { return a - b; }},
      {"multiply", wrapping_product},
      {"maximum", [](Wide a, Wide b) { return a > b ? a : b; }},
      {"minimum", [](Wide a, Wide b) { return a < b ? a : b; }},
      {"floor_divide", floor_quotient},
      {"remainder", [](Wide a, Wide b) { return b == 0 ? 0 : a - floor_quotient(a, b) * b; }},
      {"square", [](Wide a, Wide) { return wrapping_product(a, a); }},
      {"negative", [](Wide a, Wide) { return -a; }},
      {"abs", [](Wide a, Wide) { return a < 0 ? -a : a; }},
      {"sign", [](Wide a, Wide) { return Wide((a > 0) - (a < 0)); }},
      {"relu", [](Wide a, Wide) { return a > 0 ? a : 0; }},
      {"bitwise_and", [](Wide a, Wide b) { return a & b; }},
      {"bitwise_or", [](Wide a, Wide b) { return a | b; }},
      {"bitwise_xor", [](Wide a, Wide b) { return a ^ b; }},
      {"bitwise_not", [](Wide a, Wide) { return ~a; }},
  };
  return cases;
}

// Compare an opcode with its definition, for all pairs of extreme and small values.
template <class T>
void expect_integers(const std::string& opcode, const std::function<Wide(Wide, Wide)>& expected,
                     DType dtype) {
  using Limits = std::numeric_limits<T>;
  const std::vector<T> values{0,
                              1,
                              2,
                              3,
                              7,
                              Limits::max(),
                              Limits::lowest(),
                              T(Limits::max() - 1),
                              T(Limits::lowest() + 1),
                              T(-1),
                              T(-2),
                              T(-7),
                              100};
  std::vector<T> left, right;
  for (const T a : values)
    for (const T b : values) left.push_back(a), right.push_back(b);
  const auto n = static_cast<std::int64_t>(left.size());
  Tensor a(dtype, {n}), b(dtype, {n});
  std::memcpy(a.data(), left.data(), left.size() * sizeof(T));
  std::memcpy(b.data(), right.data(), right.size() * sizeof(T));
  const bool unary = opcode == "square" || opcode == "negative" || opcode == "abs" ||
                     opcode == "sign" || opcode == "relu" || opcode == "bitwise_not";
  const Tensor out = run_dense(opcode + ":" + name(dtype) + (unary ? " i0" : " i0 i1"),
                               unary ? std::vector{a} : std::vector{a, b}, {dtype}, {0})[0];
  for (std::int64_t i = 0; i < n; ++i) {
    const auto k = static_cast<std::size_t>(i);
    ASSERT_EQ(static_cast<const T*>(out.data())[i],
              static_cast<T>(static_cast<std::uint64_t>(expected(left[k], right[k]))))
        << opcode << ' ' << name(dtype) << ' ' << +left[k] << ' ' << +right[k];
  }
}

TEST(Elementwise, IntegersWrapAndFloorLikeNumPy) {
  for (const auto& [opcode, expected] : integer_cases())
    for (int d = static_cast<int>(DType::I8); d <= static_cast<int>(DType::U64); ++d) {
      const auto dtype = static_cast<DType>(d);
      visit_dtype(dtype, [&]<class T>() {
        if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
          ASSERT_NO_FATAL_FAILURE(expect_integers<T>(opcode, expected, dtype));
        }
      });
    }
}

TEST(Elementwise, IntegerPowerWraps) {
  const Tensor a(DType::I32, {7}, Integers{2, 3, -1, -1, 1, 5, 0});
  const Tensor b(DType::I32, {7}, Integers{31, 40, -3, -2, -9, -1, 0});
  const Tensor out = run_dense("power:i32 i0 i1", {a, b}, {DType::I32}, {0})[0];
  std::uint32_t cube = 1;
  for (int i = 0; i < 40; ++i) cube *= 3;
  const Integers expected{
      std::numeric_limits<std::int32_t>::lowest(), static_cast<std::int32_t>(cube), -1, 1, 1, 0, 1};
  for (int i = 0; i < 7; ++i) EXPECT_EQ(out.integer(i), expected[static_cast<std::size_t>(i)]);
}

TEST(Elementwise, ComparisonsAndLogicInEveryDtype) {
  const std::map<std::string, std::function<bool(double, double)>> cases = {
      {"equal", [](double a, double b) { return a == b; }},
      {"not_equal", [](double a, double b) { return a != b; }},
      {"less", [](double a, double b) { return a < b; }},
      {"less_equal", [](double a, double b) { return a <= b; }},
      {"greater", [](double a, double b) { return a > b; }},
      {"greater_equal", [](double a, double b) { return a >= b; }},
      {"logical_and", [](double a, double b) { return a != 0 && b != 0; }},
      {"logical_or", [](double a, double b) { return a != 0 || b != 0; }},
  };
  for (const DType dtype : all_dtypes()) {
    Tensor a = random_tensor(dtype, {203}, 3, -2, 2), b = random_tensor(dtype, {203}, 4, -2, 2);
    if (is_floating(dtype)) a.set(5, std::nan(""));
    for (const auto& [opcode, expected] : cases) {
      const Tensor out =
          run_dense(opcode + ":" + name(dtype) + " i0 i1", {a, b}, {DType::Bool}, {0})[0];
      for (std::int64_t i = 0; i < a.count(); ++i)
        ASSERT_EQ(static_cast<const unsigned char*>(out.data())[i],
                  expected(a.at(i), b.at(i)) ? 1 : 0)
            << opcode << ' ' << name(dtype);
    }
    const Tensor inverse =
        run_dense(std::string("logical_not:") + name(dtype) + " i0", {a}, {DType::Bool}, {0})[0];
    for (std::int64_t i = 0; i < a.count(); ++i) ASSERT_EQ(inverse.at(i), a.at(i) == 0 ? 1 : 0);
  }
}

TEST(Elementwise, WhereInEveryDtype) {
  for (const DType dtype : all_dtypes()) {
    const Tensor c = random_tensor(DType::Bool, {101}, 5);
    const Tensor a = random_tensor(dtype, {101}, 6), b = random_tensor(dtype, {101}, 7);
    const Tensor out =
        run_dense(std::string("where:") + name(dtype) + " i0 i1 i2", {c, a, b}, {dtype}, {0})[0];
    for (std::int64_t i = 0; i < c.count(); ++i)
      ASSERT_EQ(out.at(i), c.at(i) != 0 ? a.at(i) : b.at(i)) << name(dtype);
  }
}

TEST(Elementwise, CastsFromEveryDtypeToEveryDtype) {
  for (const DType from : all_dtypes())
    for (const DType to : all_dtypes()) {
      const Tensor a = random_tensor(from, {77}, 8, -100, 100);
      const Tensor out =
          run_dense(std::string("cast:") + name(from) + ">" + name(to) + " i0", {a}, {to}, {0})[0];
      for (std::int64_t i = 0; i < a.count(); ++i) {
        Tensor expected(to, {1});
        if (to == DType::Bool)
          expected.set(0, a.at(i) != 0);
        else if (is_floating(from) && is_integer(to) && !is_signed_integer(to))
          expected.set(0, std::max(0.0, a.at(i)));  // out of range, so it saturates
        else if (is_integer(to))
          expected.set(0, static_cast<std::int64_t>(a.at(i)));
        else
          expected.set(0, a.at(i));
        ASSERT_EQ(out.at(i), expected.at(0))
            << name(from) << " to " << name(to) << " of " << a.at(i);
      }
    }
}

TEST(Elementwise, FloatToIntegerTruncatesAndSaturates) {
  const double inf = std::numeric_limits<double>::infinity();
  const std::vector<double> values{1.9,  -1.9,         1e30,  -1e30, inf,
                                   -inf, std::nan(""), 255.5, 256,   -0.5};
  for (const DType from : {DType::F32, DType::F64}) {
    const Tensor a(from, {static_cast<std::int64_t>(values.size())}, values);
    const auto cast = [&](DType to) {
      return run_dense(std::string("cast:") + name(from) + ">" + name(to) + " i0", {a}, {to},
                       {0})[0];
    };
    const Tensor i32 = cast(DType::I32), u8 = cast(DType::U8), i64 = cast(DType::I64),
                 u64 = cast(DType::U64);
    const Integers expected_i32{1, -1, INT32_MAX, INT32_MIN, INT32_MAX, INT32_MIN, 0, 255, 256, 0};
    const Integers expected_u8{1, 0, 255, 0, 255, 0, 0, 255, 255, 0};
    for (std::int64_t i = 0; i < a.count(); ++i) {
      EXPECT_EQ(i32.integer(i), expected_i32[static_cast<std::size_t>(i)]) << a.at(i);
      EXPECT_EQ(u8.integer(i), expected_u8[static_cast<std::size_t>(i)]) << a.at(i);
    }
    EXPECT_EQ(i64.integer(2), INT64_MAX);
    EXPECT_EQ(i64.integer(3), INT64_MIN);
    EXPECT_EQ(static_cast<std::uint64_t>(u64.integer(2)), UINT64_MAX);
    EXPECT_EQ(u64.integer(3), 0);
    EXPECT_EQ(u64.integer(6), 0);
  }
}

TEST(Elementwise, SixteenBitFloatsConvertLikeTheirTypes) {
  for (const DType half : {DType::F16, DType::BF16}) {
    Tensor all(half, {65536});
    for (int i = 0; i < 65536; ++i)
      static_cast<std::uint16_t*>(all.data())[i] = static_cast<std::uint16_t>(i);
    const Tensor wide =
        run_dense(std::string("cast:") + name(half) + ">f32 i0", {all}, {DType::F32}, {0})[0];
    for (int i = 0; i < 65536; ++i) {
      const double exact = all.at(i);
      if (std::isnan(exact))
        ASSERT_TRUE(std::isnan(wide.at(i)));
      else
        ASSERT_EQ(wide.at(i), exact);
    }
    std::mt19937 generator(9);
    Tensor floats(DType::F32, {100003});
    for (std::int64_t i = 0; i < floats.count(); ++i) {
      const auto bits = static_cast<std::uint32_t>(generator());
      std::memcpy(static_cast<float*>(floats.data()) + i, &bits, 4);
    }
    const Tensor narrow =
        run_dense(std::string("cast:f32>") + name(half) + " i0", {floats}, {half}, {0})[0];
    for (std::int64_t i = 0; i < floats.count(); ++i) {
      Tensor expected(half, {1});
      expected.set(0, static_cast<const float*>(floats.data())[i]);
      ASSERT_EQ(static_cast<const std::uint16_t*>(narrow.data())[i],
                *static_cast<const std::uint16_t*>(expected.data()))
          << name(half) << ' ' << floats.at(i);
    }
  }
}

}  // namespace
}  // namespace ngd::kernels::test
