// SPDX-License-Identifier: Apache-2.0
// Tests softmax, log_softmax and softmax_cross_entropy with its gradient, against float64 formulas.
#include "kernels/fused/softmax.hpp"

#include <algorithm>
#include <limits>

#include "base/simd.hpp"
#include "harness.hpp"

namespace ngd::kernels::test {
namespace {

constexpr DType kFloats[] = {DType::F16, DType::BF16, DType::F32, DType::F64};

// Computed in float32 (float64) with an error of some units of `scale`, and rounded once.
double bound(DType dtype, double exact, double scale) {
  const double rounding = dtype == DType::F16    ? 0x1p-11
                          : dtype == DType::BF16 ? 0x1p-8
                          : dtype == DType::F32  ? 0x1p-23
                                                 : 0x1p-52;
  const double computing = dtype == DType::F64 ? 0x1p-50 : 0x1p-21;
  const double subnormal = dtype == DType::F16 ? 0x1p-24 : 0;
  return rounding * std::fabs(exact) + computing * (scale + std::fabs(exact)) + subnormal;
}

// Return the logarithm of the sum of exponentials of a row.
double log_sum(const Tensor& x, std::int64_t first, std::int64_t stride, std::int64_t length) {
  double maximum = -1e300, sum = 0;
  for (std::int64_t i = 0; i < length; ++i) maximum = std::max(maximum, x.at(first + i * stride));
  for (std::int64_t i = 0; i < length; ++i) sum += std::exp(x.at(first + i * stride) - maximum);
  return maximum + std::log(sum);
}

TEST(Softmax, WorksOnAnyAxisAndAnyFloat) {
  for (const DType dtype : kFloats)
    for (const Shape& shape : {Shape{1}, Shape{10}, Shape{128, 10}, Shape{7, 33}, Shape{3, 5000},
                               Shape{4, 5, 6}, Shape{0, 3}, Shape{300, 100}})
      for (std::size_t axis = 0; axis < shape.size(); ++axis) {
        const Tensor x = random_floats(dtype, shape, 1, -8, 8);
        const Attrs attrs = attrs_of({{"axis", static_cast<std::int64_t>(axis)}});
        const Tensor soft = run("softmax", {x}, {x.type()}, attrs)[0];
        const Tensor logs = run("log_softmax", {x}, {x.type()}, attrs)[0];
        const std::int64_t inner = row_major_strides(shape)[axis], length = shape[axis];
        std::vector<double> totals;
        for (std::int64_t row = 0; row < (length > 0 ? x.count() / length : 0); ++row)
          totals.push_back(log_sum(x, row / inner * inner * length + row % inner, inner, length));
        for (std::int64_t i = 0; i < x.count(); ++i) {
          const std::int64_t row = i / (inner * length) * inner + i % inner;
          const double exact = x.at(i) - totals[static_cast<std::size_t>(row)];
          const double odds = std::exp(exact);
          ASSERT_NEAR(logs.at(i), exact, bound(dtype, exact, 4)) << to_string(x.type());
          ASSERT_NEAR(soft.at(i), odds, bound(dtype, odds, 16 * odds)) << to_string(x.type());
        }
        EXPECT_EQ(run("softmax", {x}, {x.type()}, attrs, "", {{0, 0}})[0], soft);
        EXPECT_EQ(run("log_softmax", {x}, {x.type()}, attrs, "", {{0, 0}})[0], logs);
      }
}

TEST(Softmax, HandlesLargeAndNonFiniteInputs) {
  const double inf = std::numeric_limits<double>::infinity();
  const Tensor x(
      DType::F32, {3, 4},
      std::vector<double>{1e4, 1e4, -1e4, -inf, 1, std::nan(""), 2, 3, -1e30, 0, 1e30, 5});
  const Attrs attrs = attrs_of({{"axis", std::int64_t{1}}});
  const Tensor soft = run("softmax", {x}, {x.type()}, attrs)[0];
  const std::vector<double> first{0.5, 0.5, 0, 0}, third{0, 0, 1, 0};
  for (int i = 0; i < 4; ++i) {
    EXPECT_NEAR(soft.at(i), first[static_cast<std::size_t>(i)], 1e-6);
    EXPECT_TRUE(std::isnan(soft.at(4 + i)));
    EXPECT_EQ(soft.at(8 + i), third[static_cast<std::size_t>(i)]);
  }
  const Tensor logs = run("log_softmax", {x}, {x.type()}, attrs)[0];
  EXPECT_NEAR(logs.at(0), -std::log(2.0), 1e-6);
  EXPECT_EQ(logs.at(3), -inf);
}

const fused::SoftmaxTable& best_table() {
  using namespace fused;
  return NGD_SIMD_SELECT(simd_level(), softmax_table)();
}

TEST(Softmax, BitsDoNotDependOnTheSimdLevel) {
  for (const std::int64_t n : {1, 10, 70, 1000}) {
    const Tensor x = random_floats(DType::F32, {3, n}, 6, -8, 8);
    const auto compute = [&](const fused::SoftmaxLoops<float>& loops) {
      std::vector<float> e(static_cast<std::size_t>(3 * n)), y(e), maxima(3), sums(3);
      const auto* from = static_cast<const float*>(x.data());
      loops.exponentials(from, 3, n, e.data(), maxima.data(), sums.data());
      loops.logarithms(from, 3, n, maxima.data(), sums.data(), y.data());
      loops.divide(e.data(), 3, n, sums.data(), maxima.data(), e.data());
      e.insert(e.end(), y.begin(), y.end());
      return e;
    };
    EXPECT_EQ(compute(best_table().f32), compute(fused::baseline::softmax_table().f32)) << n;
  }
}

TEST(SoftmaxCrossEntropy, ComputesLossAndGradient) {
  for (const DType dtype : kFloats)
    for (const DType label_dtype : {DType::I32, DType::I64})
      for (const Shape& shape : {Shape{10}, Shape{128, 10}, Shape{6, 7, 33}, Shape{3, 5000},
                                 Shape{0, 4}, Shape{500, 100}, Shape{4, 1}}) {
        const std::int64_t classes = shape.back();
        const Shape rows(shape.begin(), shape.end() - 1);
        const Tensor x = random_floats(dtype, shape, 2, -8, 8);
        const Tensor labels = random_tensor(label_dtype, rows, 3, 0, static_cast<int>(classes - 1));
        const Tensor dy = random_floats(dtype, rows, 4);
        const Tensor loss = run("softmax_cross_entropy", {x, labels}, {{dtype, rows}}, {})[0];
        const Tensor gradient =
            run("softmax_cross_entropy_grad", {x, labels, dy}, {x.type()}, {})[0];
        for (std::int64_t r = 0; r < loss.count(); ++r) {
          const double total = log_sum(x, r * classes, 1, classes);
          const std::int64_t label = labels.integer(r);
          const double exact = total - x.at(r * classes + label);
          ASSERT_NEAR(loss.at(r), exact, bound(dtype, exact, 8)) << to_string(x.type());
          for (std::int64_t c = 0; c < classes; ++c) {
            const double odds = std::exp(x.at(r * classes + c) - total);
            const double slope = (odds - (c == label)) * dy.at(r);
            ASSERT_NEAR(gradient.at(r * classes + c), slope, bound(dtype, slope, 4));
          }
        }
        EXPECT_EQ(
            run("softmax_cross_entropy_grad", {x, labels, dy}, {x.type()}, {}, "", {{0, 0}})[0],
            gradient);
      }
}

TEST(SoftmaxCrossEntropy, NamesALabelOutOfRange) {
  const Tensor x = random_floats(DType::F32, {3, 4}, 5);
  for (const std::int64_t bad : {4, -1}) {
    const Tensor labels(DType::I64, {3}, Integers{0, 3, bad});
    try {
      run("softmax_cross_entropy", {x, labels}, {{DType::F32, {3}}}, {});
      FAIL() << "no error";
    } catch (const std::out_of_range& error) {
      const std::string what = error.what();
      EXPECT_NE(what.find(concat("got ", bad, " ")), std::string::npos) << what;
      EXPECT_NE(what.find("at [2]"), std::string::npos) << what;
    }
  }
}

}  // namespace
}  // namespace ngd::kernels::test
