// SPDX-License-Identifier: Apache-2.0
// Elementwise programs against scalar code: every opcode in every dtype, strides, fusion, in place.
#include <functional>
#include <limits>
#include <map>
#include <random>

#include "harness.hpp"
#include "kernels/tiles/tiles.hpp"

namespace ngd::kernels::test {
namespace {

std::string name(DType dtype) { return std::string(short_name_of(dtype)); }

// Run a program of dense inputs of one shape.
std::vector<Tensor> run_dense(const std::string& program, const std::vector<Tensor>& inputs,
                              const std::vector<DType>& outputs, const Integers& results,
                              const std::vector<InPlace>& in_place = {}) {
  const Shape& shape = inputs[0].type().shape;
  Integers strides;
  for (std::size_t i = 0; i < inputs.size(); ++i)
    for (const std::int64_t s : row_major_strides(shape)) strides.push_back(s);
  std::vector<TensorType> types;
  for (const DType dtype : outputs) types.push_back({dtype, shape});
  return run("elementwise", inputs, types,
             attrs_of({{"program", program}, {"results", results}, {"input_strides", strides}}), "",
             in_place);
}

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
          // remainder is judged against its operands: its own error is theirs.
          const double scale = opcode == "remainder" ? 9 : std::fabs(expected);
          ASSERT_NEAR(out.at(i), rounded(dtype, expected), 2.5 * epsilon(dtype) * scale + 1e-300)
              << program << " of " << a.at(i) << ", " << b.at(i);
        }
      }
}

// The largest error over every float32 in a range, in units of the last place.
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
          // sigmoid may flush where e^-x overflows.
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

// What an integer operation is, in 128 bits, before it wraps.
using Wide = __int128;
Wide wrapping_product(Wide a, Wide b) {
  return static_cast<Wide>(static_cast<unsigned __int128>(a) * static_cast<unsigned __int128>(b));
}
Wide floor_quotient(Wide a, Wide b) {
  if (b == 0) return 0;
  const Wide q = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}

TEST(Elementwise, IntegersWrapAndFloorAsNumPy) {
  const std::map<std::string, std::function<Wide(Wide, Wide)>> cases = {
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
  for (const auto& [opcode, expected] : cases)
    for (int d = static_cast<int>(DType::I8); d <= static_cast<int>(DType::U64); ++d) {
      const auto dtype = static_cast<DType>(d);
      visit_dtype(dtype, [&]<class T>() {
        if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
          using Limits = std::numeric_limits<T>;
          std::vector<T> left, right;
          std::vector<T> values{0,
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
          expected.set(0, std::max(0.0, a.at(i)));  // out of range: saturates
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

TEST(Elementwise, HalvesConvertAsTheirTypes) {
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

TEST(Elementwise, FusedChainsHaveTheBitsOfTheirParts) {
  for (const DType dtype : {DType::F16, DType::BF16, DType::F32, DType::F64}) {
    const Tensor a = random_floats(dtype, {37, 53}, 10), b = random_floats(dtype, {37, 53}, 11);
    const std::string d = std::string(":") + name(dtype) + " ";
    const Tensor fused = run_dense(
        "multiply" + d + "i0 #0.3;subtract" + d + "t0 i1;tanh" + d + "t1;multiply" + d + "t2 t0",
        {a, b}, {dtype}, {3})[0];
    const auto one = [&](const std::string& program, const std::vector<Tensor>& inputs) {
      return run_dense(program, inputs, {dtype}, {0})[0];
    };
    const Tensor t0 = one("multiply" + d + "i0 #0.3", {a});
    const Tensor t1 = one("subtract" + d + "i0 i1", {t0, b});
    const Tensor t2 = one("tanh" + d + "i0", {t1});
    EXPECT_EQ(fused, one("multiply" + d + "i0 i1", {t2, t0})) << name(dtype);
  }
}

// A random program of arithmetic, comparisons and casts, of three inputs; what is stored.
struct RandomProgram {
  std::vector<std::string> lines;
  std::vector<DType> dtypes;  // of its instructions
  Integers results;
};

RandomProgram random_program(std::mt19937& random, DType dtype, bool casts) {
  const auto below = [&](std::size_t n) { return random() % n; };
  const std::string d = concat(":", name(dtype), " ");
  RandomProgram made;
  const auto operand = [&] {
    for (int tries = 0; tries < 8 && !made.lines.empty(); ++tries) {
      const std::size_t t =
          made.lines.size() - 1 - below(std::min<std::size_t>(3, made.lines.size()));
      if (made.dtypes[t] == dtype) return concat("t", t);
    }
    const std::size_t i = below(4);
    return i == 3 ? std::string("#0.0") : concat("i", i);
  };
  const std::size_t length = 2 + below(12);
  while (made.lines.size() < length) {
    static const char* const kBinary[] = {"add", "subtract", "multiply"};
    const std::size_t kind = below(casts ? 7 : 6);
    if (kind < 4) {
      made.lines.push_back(concat(kBinary[below(3)], d, operand(), " ", operand()));
      made.dtypes.push_back(dtype);
    } else if (kind == 4) {
      made.lines.push_back(concat("relu", d, operand()));
      made.dtypes.push_back(dtype);
    } else if (kind == 5) {
      const std::string zero = below(2) == 0 ? "#0.0" : operand();
      made.lines.push_back(concat("greater", d, operand(), " ", operand()));
      made.dtypes.push_back(DType::Bool);
      made.lines.push_back(
          concat("where", d, "t", made.lines.size() - 1, " ", operand(), " ", zero));
      made.dtypes.push_back(dtype);
    } else {
      made.lines.push_back(concat("cast:", name(dtype), ">bf16 ", operand()));
      made.dtypes.push_back(DType::BF16);
      made.lines.push_back(concat("cast:bf16>", name(dtype), " t", made.lines.size() - 1));
      made.dtypes.push_back(dtype);
    }
  }
  for (std::size_t t = 0; t < made.lines.size(); ++t)
    if (t + 1 == made.lines.size() || below(4) == 0)
      made.results.push_back(static_cast<std::int64_t>(t));
  return made;
}

TEST(Elementwise, RandomProgramsHaveTheBitsOfTheirInstructions) {
  std::mt19937 random(31);
  const double infinity = std::numeric_limits<double>::infinity();
  for (int round = 0; round < 400; ++round) {
    const DType dtype = round % 3 == 0 ? DType::F64 : DType::F32;
    const std::int64_t n = round % 5 == 0 ? 3001 : 1 + random() % 70;
    std::vector<Tensor> inputs;
    for (unsigned i = 0; i < 3; ++i) {
      inputs.push_back(random_floats(dtype, {n}, 100 * round + i));
      for (const double value : {0.0, -0.0, infinity, -infinity, infinity - infinity})
        inputs.back().set(static_cast<std::int64_t>(random() % n), value);
    }
    const RandomProgram program = random_program(random, dtype, round % 2 == 0);
    std::string text;
    std::vector<Tensor> values;  // of the instructions, one by one
    for (std::size_t t = 0; t < program.lines.size(); ++t) {
      text += concat(t > 0 ? ";" : "", program.lines[t]);
      std::vector<Tensor> read = {inputs[0]};
      std::string line;
      for (std::size_t at = 0; at < program.lines[t].size(); ++at) {
        const std::string& from = program.lines[t];
        if (at == 0 || from[at - 1] != ' ' || (from[at] != 'i' && from[at] != 't')) {
          line += from[at];
          continue;
        }
        const std::size_t number = std::stoul(from.substr(at + 1));
        read.push_back(from[at] == 'i' ? inputs[number] : values[number]);
        line += concat("i", read.size() - 1);
        at = std::min(from.find(' ', at), from.size()) - 1;
      }
      values.push_back(run_dense(line, read, {program.dtypes[t]}, {0})[0]);
    }
    std::vector<DType> stored;
    for (const std::int64_t t : program.results) stored.push_back(program.dtypes[t]);
    const std::vector<Tensor> out = run_dense(text, inputs, stored, program.results);
    const auto last = program.results.size() - 1;
    for (std::size_t k = 0; k <= last; ++k)
      for (std::int64_t i = 0; i < n; ++i) {
        const double found = out[k].at(i), expected = values[program.results[k]].at(i);
        ASSERT_TRUE(found == expected || (std::isnan(found) && std::isnan(expected)))
            << text << " result " << k << " element " << i;
        ASSERT_EQ(std::signbit(found), std::signbit(std::isnan(expected) ? found : expected));
      }
    // Wherever the planner may lay a result over an input, the bits stay.
    const TensorType type = inputs[0].type();
    std::vector<TensorType> types;
    for (const DType each : stored) types.push_back({each, {n}});
    const Offer offer = offer_of({"elementwise",
                                  {type, type, type},
                                  types,
                                  attrs_of({{"program", text},
                                            {"results", program.results},
                                            {"input_strides", Integers{1, 1, 1}}})});
    for (const InPlace& pair : offer.kernel->in_place()) {
      const std::vector<Tensor> over = run_dense(text, inputs, stored, program.results, {pair});
      for (std::size_t k = 0; k <= last; ++k) EXPECT_EQ(out[k], over[k]) << text;
    }
  }
}

TEST(Elementwise, ManyOutputsMayRepeatAndFeedLaterInstructions) {
  for (const DType dtype : {DType::F16, DType::F32, DType::I16}) {
    const Tensor a = random_tensor(dtype, {2050}, 12), b = random_tensor(dtype, {2050}, 13);
    const std::string d = std::string(":") + name(dtype) + " ";
    const auto out = run_dense(
        "add" + d + "i0 i1;multiply" + d + "t0 #2;less" + d + "t0 t1;subtract" + d + "t1 i0",
        {a, b}, {dtype, DType::Bool, dtype, dtype}, {0, 2, 3, 0});
    for (std::int64_t i = 0; i < a.count(); ++i) {
      const double sum = a.at(i) + b.at(i);
      ASSERT_EQ(out[0].at(i), sum);
      ASSERT_EQ(out[1].at(i), sum < 2 * sum);
      ASSERT_EQ(out[2].at(i), 2 * sum - a.at(i));
      ASSERT_EQ(out[3].at(i), sum);
    }
  }
}

struct Geometry {
  Shape shape;
  Integers strides;  // of one input
  std::int64_t elements;
};

// Broadcasts and transposes of every kind that the planner tells apart, long and short rows.
const std::vector<Geometry>& geometries() {
  static const std::vector<Geometry> all = {
      {{}, {}, 1},
      {{5}, {0}, 1},
      {{5000}, {0}, 1},
      {{128, 100}, {0, 1}, 100},
      {{128, 100}, {1, 0}, 128},
      {{128, 100}, {0, 0}, 1},
      {{7, 3000}, {0, 1}, 3000},
      {{7, 3000}, {1, 0}, 7},
      {{7, 3000}, {3000, 1}, 21000},
      {{7, 3000}, {1, 7}, 21000},
      {{7, 3000}, {5000, 1}, 7 * 5000},
      {{100, 784}, {1, 100}, 78400},
      {{3, 5, 7}, {1, 3, 15}, 105},
      {{3, 5, 7}, {7, 0, 1}, 21},
      {{3, 5, 7}, {0, 1, 0}, 5},
      {{3, 1, 7}, {7, 99, 1}, 21},
      {{2, 3, 4, 5}, {0, 20, 0, 4}, 60},
      {{2, 3, 4, 5}, {0, 5, 0, 1}, 15},
      {{64, 3, 600}, {0, 600, 1}, 1800},
      {{64, 3, 600}, {3, 1, 0}, 192},
      {{0, 4}, {4, 1}, 0},
      {{4, 0}, {0, 1}, 0},
      {{1, 1, 1}, {0, 0, 0}, 1},
      {{40, 3}, {6, 2}, 240},
      {{3, 2000}, {4000, 2}, 12000},
  };
  return all;
}

TEST(Elementwise, ReadsAnyStrides) {
  for (const DType dtype : {DType::U8, DType::F16, DType::F32, DType::F64})
    for (const Geometry& g : geometries()) {
      const Tensor a = random_tensor(dtype, {g.elements}, 14);
      const Tensor b = random_tensor(dtype, {element_count(g.shape)}, 15);
      Integers strides = g.strides;
      for (const std::int64_t s : row_major_strides(g.shape)) strides.push_back(s);
      const std::string program = std::string("maximum:") + name(dtype) + " i0 i1";
      const Tensor out =
          run("elementwise", {a, b}, {{dtype, g.shape}},
              attrs_of(
                  {{"program", program}, {"results", Integers{0}}, {"input_strides", strides}}))[0];
      for (std::int64_t i = 0; i < out.count(); ++i) {
        std::int64_t offset = 0, rest = i;
        for (std::size_t axis = g.shape.size(); axis-- > 0; rest /= g.shape[axis])
          offset += rest % g.shape[axis] * g.strides[axis];
        ASSERT_EQ(out.at(i), std::max(a.at(offset), b.at(i)))
            << to_string(out.type()) << " element " << i;
      }
    }
}

TEST(Elementwise, WritesOverItsInputs) {
  for (const DType dtype : {DType::F16, DType::F32, DType::I64})
    for (const std::int64_t n : {1, 100, 5001}) {
      const Tensor a = random_tensor(dtype, {n}, 16), b = random_tensor(dtype, {n}, 17);
      const std::string program =
          concat("multiply:", name(dtype), " i1 #2;subtract:", name(dtype), " i0 t0");
      const Tensor fresh = run_dense(program, {a, b}, {dtype}, {1})[0];
      EXPECT_EQ(fresh, run_dense(program, {a, b}, {dtype}, {1}, {{0, 0}})[0]);
      EXPECT_EQ(fresh, run_dense(program, {a, b}, {dtype}, {1}, {{0, 1}})[0]);
    }
}

TEST(Elementwise, RefusesToWriteOverWhatItStillReads) {
  const auto in_place = [&](const char* program, Integers results, Integers strides) {
    const TensorType type{DType::F32, {4, 4}};
    const KernelQuery query{
        "elementwise",
        {type, type},
        std::vector<TensorType>(results.size(), type),
        attrs_of(
            {{"program", std::string(program)}, {"results", results}, {"input_strides", strides}})};
    const Offer offer = offer_of(query);
    if (offer.kernel == nullptr) throw std::runtime_error(offer.refusal);
    return offer.kernel->in_place();
  };
  using Pairs = std::vector<InPlace>;
  const Integers dense = {4, 1, 4, 1};
  EXPECT_EQ(in_place("add:f32 i0 i1", {0}, dense), (Pairs{{0, 0}, {0, 1}}));
  EXPECT_EQ(in_place("add:f32 i0 i1", {0}, {4, 1, 1, 4}), (Pairs{{0, 0}}));
  EXPECT_EQ(in_place("add:f32 i0 i1", {0}, {0, 1, 0, 0}), Pairs{});
  EXPECT_EQ(in_place("negative:f32 i0;add:f32 i0 i1", {0, 1}, dense), (Pairs{{1, 0}, {1, 1}}));
  EXPECT_EQ(in_place("negative:f32 i0;add:f32 t0 i1", {0, 1}, dense),
            (Pairs{{0, 0}, {1, 0}, {1, 1}}));
  EXPECT_EQ(in_place("negative:f32 i0;add:f32 t0 i1", {1, 0}, dense),
            (Pairs{{0, 0}, {0, 1}, {1, 0}}));
}

TEST(Elementwise, ImmediatesAreReadInTheirDtype) {
  const auto constant = [](const std::string& text, DType dtype) {
    return run("elementwise", {}, {{dtype, {3}}},
               attrs_of({{"program", std::string("copy:") + name(dtype) + " #" + text},
                         {"results", Integers{0}},
                         {"input_strides", Integers{}}}))[0];
  };
  EXPECT_EQ(constant("0.5", DType::F32).at(2), 0.5);
  EXPECT_EQ(constant("-inf", DType::F64).at(0), -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(constant("nan", DType::F16).at(1)));
  EXPECT_EQ(constant("1.001", DType::BF16).at(0), 1.0);
  EXPECT_EQ(constant("-3", DType::I8).at(0), -3);
  EXPECT_EQ(static_cast<std::uint64_t>(constant("18446744073709551615", DType::U64).integer(0)),
            UINT64_MAX);
  EXPECT_EQ(constant("-9223372036854775808", DType::I64).integer(0), INT64_MIN);
  EXPECT_EQ(constant("1", DType::Bool).at(0), 1);
}

TEST(Elementwise, RefusesWithAReason) {
  const auto reason = [](const std::string& program, Integers results = {0},
                         Integers strides = {1}) {
    const KernelQuery query{"elementwise",
                            {{DType::F32, {4}}},
                            {{DType::F32, {4}}},
                            attrs_of({{"program", program},
                                      {"results", std::move(results)},
                                      {"input_strides", std::move(strides)}})};
    return refusal_of(query);
  };
  EXPECT_NE(reason("frobnicate:f32 i0").find("no elementwise opcode is called frobnicate"),
            std::string::npos);
  EXPECT_NE(reason("exp:f32 i1").find("operand i1"), std::string::npos);
  EXPECT_NE(reason("exp:f32 t0").find("operand t0"), std::string::npos);
  EXPECT_NE(reason("exp:f64 i0").find("operand i0 is f32 where f64"), std::string::npos);
  EXPECT_NE(reason("add:f32 i0").find("takes 2 operands, not 1"), std::string::npos);
  EXPECT_NE(reason("exp:i32 #1").find("output 0"), std::string::npos);
  EXPECT_NE(reason("cast:f32>i32 i0;exp:i32 t0;cast:i32>f32 t1", {2}).find("not defined for i32"),
            std::string::npos);
  EXPECT_NE(reason("add:f32 i0 #x").find("immediate #x is no f32"), std::string::npos);
  EXPECT_NE(reason("exp:f32 i0", {1}).find("results name 1"), std::string::npos);
  EXPECT_NE(reason("exp:f32 i0", {0}, {2}).find("beyond its end"), std::string::npos);
  EXPECT_NE(reason("exp:f32 i0", {0}, {1, 1}).find("input_strides"), std::string::npos);
}

// Every opcode gives the same bits on every SIMD level that this CPU runs. (Run this program with
// NGD_SIMD set to compare others with the baseline.)
TEST(Elementwise, ResultsDoNotDependOnTheSimdLevel) {
  const tiles::TileTable& best = tiles::tile_table();
  const tiles::TileTable& base = tiles::baseline::tile_table();
  constexpr std::int64_t n = 1009;
  for (const DType dtype : {DType::F32, DType::F64, DType::I32, DType::U8})
    for (int op = 0; op < tiles::kTabledOpcodes; ++op) {
      const auto f = best.operations[op][static_cast<int>(dtype)];
      const auto g = base.operations[op][static_cast<int>(dtype)];
      if (f == nullptr || op == static_cast<int>(tiles::Opcode::where)) continue;
      const double low = is_floating(dtype) ? -50 : 0;
      const Tensor a = random_floats(dtype, {n}, 18, low, 50),
                   b = random_floats(dtype, {n}, 19, low, 50);
      std::vector<std::byte> x(n * 8), y(n * 8);
      f(a.data(), b.data(), nullptr, x.data(), n);
      g(a.data(), b.data(), nullptr, y.data(), n);
      if (dtype == DType::F32 || dtype == DType::F64) {  // the sign of a NaN may differ
        const auto quiet = [&](std::vector<std::byte>& bytes) {
          for (std::int64_t i = 0; i < n; ++i)
            if (auto* v = reinterpret_cast<float*>(bytes.data());
                dtype == DType::F32 && v[i] != v[i])
              v[i] = 0;
            else if (auto* w = reinterpret_cast<double*>(bytes.data());
                     dtype == DType::F64 && w[i] != w[i])
              w[i] = 0;
        };
        quiet(x), quiet(y);
      }
      EXPECT_EQ(x, y) << "opcode " << op << ' ' << name(dtype);
    }
}

}  // namespace
}  // namespace ngd::kernels::test
