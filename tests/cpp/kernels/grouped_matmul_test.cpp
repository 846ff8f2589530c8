// SPDX-License-Identifier: Apache-2.0
// Tests grouped_matmul and grouped_weight_grad, in every implementation, against three loops.
#include "forked.hpp"
#include "harness.hpp"

namespace ngd::kernels::test {
namespace {

struct Case {
  std::int64_t rows, k, n;
  Integers offsets;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {1, 1, 1, {1}},
      {7, 4, 5, {2, 2, 5, 7}},
      {9, 3, 2, {0, 4, 6}},  // the last rows have no group
      {6, 5, 3, {0, 0}},
      {200, 33, 100, {1, 90, 200}},
      {140, 260, 485, {130, 140}},  // more than a block of rows, columns and depth
      {20, 512, 40, {18, 19, 20}},
  };
  return all;
}

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

// The weights as they are stored: with exchanged last axes if they are transposed.
Tensor stored(const Tensor& weight, bool transpose) {
  if (!transpose) return weight;
  const Shape& shape = weight.type().shape;
  Tensor result(weight.type().dtype, {shape[0], shape[2], shape[1]});
  for (std::int64_t i = 0; i < weight.count(); ++i) {
    const std::int64_t group = i / (shape[1] * shape[2]), row = i / shape[2] % shape[1],
                       column = i % shape[2];
    result.set((group * shape[2] + column) * shape[1] + row, weight.at(i));
  }
  return result;
}

// The largest rounding error of a sum of terms of that magnitude.
double tolerance(DType dtype, double sum, double magnitude) {
  const double unit = dtype == DType::F16    ? 0x1p-11
                      : dtype == DType::BF16 ? 0x1p-8
                      : dtype == DType::F32  ? 0x1p-22
                                             : 0x1p-50;
  const double least = dtype == DType::F16 ? 0x1p-25 : 0;  // half of the smallest number
  return least + unit * 1.1 * std::fabs(sum) + std::min(unit, 0x1p-20) * magnitude;
}

bool accepts(std::string_view op, const char* implementation, DType dtype) {
  const TensorType rows{dtype, {2, 2}}, weights{dtype, {1, 2, 2}}, offsets{DType::I64, {1}};
  const bool is_gradient = op == "grouped_weight_grad";
  const KernelQuery query{
      op, {rows, is_gradient ? rows : weights, offsets}, {is_gradient ? weights : rows}, {}};
  return offer_of(query, implementation).kernel != nullptr;
}

class GroupedMatmul : public testing::TestWithParam<const char*> {};

TEST_P(GroupedMatmul, MultipliesRowsByTheWeightOfTheirGroup) {
  for (const DType dtype : {DType::F16, DType::BF16, DType::F32, DType::F64}) {
    if (!accepts("grouped_matmul", GetParam(), dtype)) continue;
    for (const Case& c : cases())
      for (const bool transpose : {false, true}) {
        const auto groups = static_cast<std::int64_t>(c.offsets.size());
        const Tensor x = random_floats(dtype, {c.rows, c.k}, 1),
                     weight = random_floats(dtype, {groups, c.k, c.n}, 2),
                     offsets(transpose ? DType::I32 : DType::I64, {groups}, c.offsets);
        const Tensor product =
            run("grouped_matmul", {x, stored(weight, transpose), offsets}, {{dtype, {c.rows, c.n}}},
                attrs_of({{"transpose_b", std::int64_t{transpose}}}), GetParam())[0];
        const std::vector<double> left = x.doubles(), right = weight.doubles();
        for (std::int64_t i = 0; i < product.count(); ++i) {
          const std::int64_t row = i / c.n, column = i % c.n;
          const auto group =
              std::upper_bound(c.offsets.begin(), c.offsets.end(), row) - c.offsets.begin();
          double sum = 0, magnitude = 0;
          for (std::int64_t p = 0; group < groups && p < c.k; ++p) {
            const double term =
                left[index(row * c.k + p)] * right[index((group * c.k + p) * c.n + column)];
            sum += term;
            magnitude += std::fabs(term);
          }
          ASSERT_NEAR(product.at(i), sum, tolerance(dtype, sum, magnitude))
              << to_string(product.type()) << " at " << i;
        }
      }
  }
}

TEST_P(GroupedMatmul, ComputesGradientsOfWeights) {
  for (const DType dtype : {DType::F16, DType::BF16, DType::F32, DType::F64}) {
    if (!accepts("grouped_weight_grad", GetParam(), dtype)) continue;
    for (const Case& c : cases()) {
      const auto groups = static_cast<std::int64_t>(c.offsets.size());
      const Tensor a = random_floats(dtype, {c.rows, c.k}, 1),
                   b = random_floats(dtype, {c.rows, c.n}, 2),
                   offsets(DType::I64, {groups}, c.offsets);
      const Tensor product = run("grouped_weight_grad", {a, b, offsets},
                                 {{dtype, {groups, c.k, c.n}}}, {}, GetParam())[0];
      const std::vector<double> left = a.doubles(), right = b.doubles();
      for (std::int64_t i = 0; i < product.count(); ++i) {
        const std::int64_t group = i / (c.k * c.n), row = i / c.n % c.k, column = i % c.n;
        double sum = 0, magnitude = 0;
        for (std::int64_t p = group > 0 ? c.offsets[index(group - 1)] : 0;
             p < c.offsets[index(group)]; ++p) {
          const double term = left[index(p * c.k + row)] * right[index(p * c.n + column)];
          sum += term;
          magnitude += std::fabs(term);
        }
        ASSERT_NEAR(product.at(i), sum, tolerance(dtype, sum, magnitude))
            << to_string(product.type()) << " at " << i;
      }
    }
  }
}

TEST_P(GroupedMatmul, RejectsOffsetsThatDecreaseOrExceedTheRows) {
  const auto message = [](const Integers& offsets) -> std::string {
    const Tensor x = random_floats(DType::F32, {4, 3}, 1),
                 weight = random_floats(DType::F32, {2, 3, 5}, 2);
    try {
      run("grouped_matmul", {x, weight, Tensor(DType::I64, {2}, offsets)}, {{DType::F32, {4, 5}}},
          {}, GetParam());
    } catch (const std::out_of_range& error) {
      return error.what();
    }
    return "";
  };
  const std::string expected =
      "grouped_matmul: expected offsets from 0 to 4 that do not decrease; got ";
  EXPECT_EQ(message({0, 4}), "");
  EXPECT_EQ(message({3, 2}), expected + "2 after 3 at [1] of the offsets");
  EXPECT_EQ(message({3, 5}), expected + "5 after 3 at [1] of the offsets");
  EXPECT_EQ(message({-1, 4}), expected + "-1 after 0 at [0] of the offsets");
}

TEST_P(GroupedMatmul, RunsInAForkedChild) {
  const Tensor x = random_floats(DType::F32, {300, 256}, 7),
               weight = random_floats(DType::F32, {2, 256, 192}, 8),
               offsets(DType::I64, {2}, Integers{100, 300});
  const TensorType out{DType::F32, {300, 192}};
  const KernelQuery query = query_of("grouped_matmul", {x, weight, offsets}, {out}, {});
  expect_same_in_a_forked_child(GetParam(), query, {x, weight, offsets});
}

INSTANTIATE_TEST_SUITE_P(Implementations, GroupedMatmul,
                         testing::ValuesIn(implementations_of("grouped_matmul")),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace
}  // namespace ngd::kernels::test
