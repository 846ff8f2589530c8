// SPDX-License-Identifier: Apache-2.0
// Tests matmul, in every implementation, against three loops.
#include <algorithm>

#include "base/simd.hpp"
#include "forked.hpp"
#include "harness.hpp"

namespace ngd::kernels::test {
namespace {

struct Case {
  Shape a, b;  // as they are multiplied, before any transposition
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {{1, 1}, {1, 1}},
      {{3, 5}, {5, 2}},
      {{128, 784}, {784, 10}},
      {{64, 100}, {100, 10}},
      {{10, 128}, {128, 100}},
      {{17, 300}, {300, 33}},
      {{97, 513}, {513, 61}},
      {{200, 40}, {40, 500}},
      {{1, 70}, {70, 9}},
      {{9, 70}, {70, 1}},
      {{6, 4, 5}, {6, 5, 3}},
      {{6, 4, 5}, {5, 3}},
      {{4, 5}, {6, 5, 3}},
      {{2, 1, 4, 5}, {3, 5, 6}},
      {{2, 3, 4, 5}, {2, 1, 5, 6}},
      {{1, 4, 5}, {7, 5, 3}},
      {{2, 3, 4, 5}, {5, 6}},
      {{5, 2, 130, 70}, {70, 20}},
      // more than a block of rows, columns and depth, and more of A than stays packed
      {{150, 300}, {300, 505}},
      {{300, 270}, {270, 20}},
      {{128, 4200}, {4200, 33}},
      // some columns more than full vectors: each number of columns that is multiplied by rows, and
      // more
      {{40, 30}, {30, 17}},
      {{9, 200}, {200, 50}},
      {{65, 40}, {40, 67}},
      {{33, 20}, {20, 84}},
      {{130, 50}, {50, 101}},
      {{24, 8}, {8, 28}},
      {{23, 8}, {8, 29}},
  };
  return all;
}

Shape transposed(Shape shape) {
  std::swap(shape[shape.size() - 1], shape[shape.size() - 2]);
  return shape;
}

// The stored operand: with exchanged last axes if it is transposed.
Tensor stored(const Tensor& x, bool transpose) {
  if (!transpose) return x;
  Tensor result(x.type().dtype, transposed(x.type().shape));
  const std::int64_t rows = x.type().shape.end()[-2], columns = x.type().shape.end()[-1];
  for (std::int64_t i = 0; i < x.count(); ++i) {
    const std::int64_t matrix = i / (rows * columns), row = i / columns % rows,
                       column = i % columns;
    const auto at = matrix * rows * columns + column * rows + row;
    if (is_floating(x.type().dtype))
      result.set(at, x.at(i));
    else
      result.set(at, x.integer(i));
  }
  return result;
}

Shape product_shape(const Shape& a, const Shape& b) {
  Shape out(std::max(a.size(), b.size()));
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::int64_t from_a = i + a.size() >= out.size() ? a[i + a.size() - out.size()] : 1;
    const std::int64_t from_b = i + b.size() >= out.size() ? b[i + b.size() - out.size()] : 1;
    out[i] = from_a == 1 ? from_b : from_a;
  }
  out[out.size() - 2] = a.end()[-2];
  out[out.size() - 1] = b.end()[-1];
  return out;
}

// The offset of the matrix of an operand that output matrix i needs.
std::int64_t matrix_of(const Shape& shape, const Shape& out, std::int64_t i) {
  std::int64_t index = 0, stride = 1;
  for (std::size_t back = 3; back <= out.size(); ++back) {
    const std::int64_t at = i % out[out.size() - back];
    i /= out[out.size() - back];
    if (back > shape.size()) continue;
    if (shape[shape.size() - back] != 1) index += at * stride;
    stride *= shape[shape.size() - back];
  }
  return index;
}

// Call each(i, exact sum, sum of magnitudes) for every element of the result.
template <class Each>
void exact_product(const Tensor& a, const Tensor& b, const Tensor* bias, const Shape& out,
                   Each&& each) {
  const std::int64_t m = out.end()[-2], n = out.end()[-1], k = a.type().shape.end()[-1];
  const std::vector<double> left = a.doubles(), right = b.doubles();
  for (std::int64_t i = 0; i < element_count(out); ++i) {
    const std::int64_t matrix = i / (m * n), row = i / n % m, column = i % n;
    const std::int64_t in_a = matrix_of(a.type().shape, out, matrix) * m * k + row * k;
    const std::int64_t in_b = matrix_of(b.type().shape, out, matrix) * k * n + column;
    double sum = 0, magnitude = 0;
    for (std::int64_t p = 0; p < k; ++p) {
      const double term =
          left[static_cast<std::size_t>(in_a + p)] * right[static_cast<std::size_t>(in_b + p * n)];
      sum += term;
      magnitude += std::fabs(term);
    }
    if (bias != nullptr) sum += bias->at(column), magnitude += std::fabs(bias->at(column));
    each(i, sum, magnitude);
  }
}

Attrs attrs_for(bool transpose_a, bool transpose_b, const std::vector<std::string>& posts) {
  Attrs attrs = attrs_of(
      {{"transpose_a", std::int64_t{transpose_a}}, {"transpose_b", std::int64_t{transpose_b}}});
  if (!posts.empty()) attrs.set("post", posts);
  return attrs;
}
Attrs attrs_for(bool transpose_a, bool transpose_b, const std::string& post) {
  const std::vector<std::string> one{post};
  return attrs_for(transpose_a, transpose_b, post.empty() ? std::vector<std::string>{} : one);
}

bool accepts(const char* implementation, DType dtype) {
  const TensorType square{dtype, {2, 2}};
  const KernelQuery query{"matmul", {square, square}, {square}, attrs_for(false, false, "")};
  return offer_of(query, implementation).kernel != nullptr;
}

class Matmul : public testing::TestWithParam<const char*> {};

TEST_P(Matmul, Floats) {
  for (const DType dtype : {DType::F16, DType::BF16, DType::F32, DType::F64}) {
    if (!accepts(GetParam(), dtype)) continue;
    const double unit = dtype == DType::F16    ? 0x1p-11
                        : dtype == DType::BF16 ? 0x1p-8
                        : dtype == DType::F32  ? 0x1p-22
                                               : 0x1p-50;
    for (const Case& c : cases())
      for (int variant = 0; variant < 4; ++variant) {
        const bool transpose_a = variant % 2 != 0, transpose_b = variant / 2 != 0;
        const Tensor a = random_floats(dtype, c.a, 1), b = random_floats(dtype, c.b, 2);
        const Shape out = product_shape(c.a, c.b);
        const Tensor bias = random_floats(dtype, {out.back()}, 3);
        const bool with_bias = variant != 1;
        const std::string post = variant == 2 && !is_half(dtype) ? "relu" : "";
        std::vector<Tensor> inputs{stored(a, transpose_a), stored(b, transpose_b)};
        if (with_bias) inputs.push_back(bias);
        const Attrs attrs = attrs_for(transpose_a, transpose_b, post);
        const Tensor product = run("matmul", inputs, {{dtype, out}}, attrs, GetParam())[0];
        exact_product(a, b, with_bias ? &bias : nullptr, out,
                      [&](std::int64_t i, double sum, double magnitude) {
                        const double exact = post.empty() ? sum : std::max(sum, 0.0);
                        // Sums are in float32 or wider, and are rounded once.
                        ASSERT_NEAR(
                            product.at(i), exact,
                            unit * 1.1 * std::fabs(exact) + std::min(unit, 0x1p-20) * magnitude)
                            << to_string(inputs[0].type()) << " @ " << to_string(inputs[1].type());
                      });
      }
  }
}

TEST_P(Matmul, AResidualIsAddedBetweenBiasAndRelu) {
  if (std::string(GetParam()) != "onednn") GTEST_SKIP() << "a residual stays an op of its own";
  for (const Case& c : cases())
    for (const bool with_bias : {false, true})
      for (const bool with_relu : {false, true}) {
        const Tensor a = random_floats(DType::F32, c.a, 1), b = random_floats(DType::F32, c.b, 2);
        const Shape out = product_shape(c.a, c.b);
        const Tensor bias = random_floats(DType::F32, {out.back()}, 3),
                     added = random_floats(DType::F32, out, 4);
        std::vector<Tensor> inputs{a, stored(b, true)};
        if (with_bias) inputs.push_back(bias);
        inputs.push_back(added);
        std::vector<std::string> posts{"add"};
        if (with_relu) posts.push_back("relu");
        const Tensor product = run("matmul", inputs, {{DType::F32, out}},
                                   attrs_for(false, true, posts), GetParam())[0];
        exact_product(a, b, with_bias ? &bias : nullptr, out,
                      [&](std::int64_t i, double sum, double magnitude) {
                        sum += added.at(i), magnitude += std::fabs(added.at(i));
                        const double exact = with_relu ? std::max(sum, 0.0) : sum;
                        ASSERT_NEAR(product.at(i), exact, 0x1p-20 * magnitude)
                            << to_string(a.type()) << " @ " << to_string(b.type());
                      });
      }
}

TEST_P(Matmul, IntegersWrap) {
  for (const DType dtype : all_dtypes()) {
    if (is_floating(dtype) || !accepts(GetParam(), dtype)) continue;
    for (const Case& c : cases()) {
      const Tensor a = random_tensor(dtype, c.a, 4, -100, 100), b = random_tensor(dtype, c.b, 5);
      const Shape out = product_shape(c.a, c.b);
      const Tensor product = run("matmul", {a, stored(b, true)}, {{dtype, out}},
                                 attrs_for(false, true, ""), GetParam())[0];
      exact_product(a, b, nullptr, out, [&](std::int64_t i, double sum, double) {
        Tensor expected(dtype, {1});
        expected.set(0, static_cast<std::int64_t>(sum));
        ASSERT_EQ(product.integer(i), expected.integer(0)) << to_string(product.type());
      });
    }
  }
}

TEST_P(Matmul, SupportsEmptyOperandsAndResults) {
  for (const DType dtype : {DType::F32, DType::F64, DType::BF16, DType::I32}) {
    const Tensor bias = random_tensor(dtype, {4}, 6);
    const Tensor zeros = run("matmul", {Tensor(dtype, {3, 0}), Tensor(dtype, {0, 4})},
                             {{dtype, {3, 4}}}, attrs_for(false, false, ""))[0];
    for (std::int64_t i = 0; i < 12; ++i) EXPECT_EQ(zeros.at(i), 0);
    const Tensor biased = run("matmul", {Tensor(dtype, {3, 0}), Tensor(dtype, {0, 4}), bias},
                              {{dtype, {3, 4}}}, attrs_for(false, false, ""))[0];
    for (std::int64_t i = 0; i < 12; ++i) EXPECT_EQ(biased.at(i), bias.at(i % 4));
    for (const Case& c : {Case{{0, 5}, {5, 3}}, Case{{3, 5}, {5, 0}}, Case{{0, 2, 5}, {5, 3}}})
      EXPECT_EQ(run("matmul", {Tensor(dtype, c.a), Tensor(dtype, c.b)},
                    {{dtype, product_shape(c.a, c.b)}}, attrs_for(false, false, ""))[0]
                    .count(),
                0);
  }
}

TEST_P(Matmul, RejectsUnsupportedOperands) {
  const auto refused = [](Shape a, Shape b, Shape out, const char* post = "") {
    const KernelQuery query{"matmul",
                            {{DType::F32, a}, {DType::F32, b}},
                            {{DType::F32, out}},
                            attrs_for(false, false, post)};
    return offer_of(query, GetParam()).refusal;
  };
  EXPECT_NE(refused({2, 3}, {4, 2}, {2, 2}), "");
  EXPECT_NE(refused({2, 3}, {3, 2}, {2, 3}), "");
  EXPECT_NE(refused({3}, {3, 2}, {2}), "");
  EXPECT_NE(refused({2, 2, 3}, {3, 3, 2}, {2, 2, 2}), "");
  EXPECT_NE(refused({2, 3}, {3, 2}, {2, 2}, "selu").find("selu"), std::string::npos);
  EXPECT_EQ(refused({2, 3}, {3, 2}, {2, 2}, "relu"), "");
}

TEST_P(Matmul, NanAndInfinityPropagateThroughPostOperations) {
  for (const DType dtype : {DType::BF16, DType::F32, DType::F64}) {
    if (!accepts(GetParam(), dtype)) continue;
    for (const Shape& shape : {Shape{3, 5}, Shape{33, 40}}) {
      Tensor a = random_floats(dtype, shape, 9), b = random_floats(dtype, {shape[1], 50}, 10);
      a.set(shape[1] + 2, std::nan(""));  // in row 1
      for (const char* post : {"", "relu", "gelu", "gelu_tanh", "silu"}) {
        const KernelQuery query =
            query_of("matmul", {a, b}, {{dtype, {shape[0], 50}}}, attrs_for(false, false, post));
        if (offer_of(query, GetParam()).kernel == nullptr) continue;
        const Tensor out = run("matmul", {a, b}, {{dtype, {shape[0], 50}}},
                               attrs_for(false, false, post), GetParam())[0];
        for (std::int64_t i = 0; i < out.count(); ++i)
          ASSERT_EQ(std::isnan(out.at(i)), i / 50 == 1) << post << ' ' << to_string(out.type());
      }
    }
  }
}

#if defined(NGD_HAVE_ONEDNN)
// Few rows times a matrix whose row stride is a power of two, few columns more than full vectors,
// and transposed rows of small depth.
TEST(MatmulRows, OurGemmServesWhatItMultipliesFaster) {
  const auto served_by = [](std::int64_t rows, std::int64_t depth, std::int64_t columns,
                            std::vector<std::string> posts = {}, bool transpose_b = false,
                            bool transpose_a = false) {
    const Shape a = transpose_a ? Shape{depth, rows} : Shape{rows, depth};
    const Shape b = transpose_b ? Shape{columns, depth} : Shape{depth, columns};
    const KernelQuery query{"matmul",
                            {{DType::F32, a}, {DType::F32, b}},
                            {{DType::F32, {rows, columns}}},
                            attrs_for(transpose_a, transpose_b, posts)};
    return std::string(find(cpu_table(), query, this_machine()).row->implementation);
  };
  EXPECT_EQ(served_by(1024, 128, 1024, {}, false, true), "fallback");
  EXPECT_EQ(served_by(16, 4, 1000, {}, false, true), "fallback");
  EXPECT_EQ(served_by(1024, 300, 1024, {}, false, true), "onednn");
  EXPECT_EQ(served_by(200, 128, 96, {}, false, true), "onednn");
  EXPECT_EQ(served_by(1024, 128, 1024, {"gelu"}, false, true), "onednn");
  if (simd_level() != SimdLevel::Avx512) GTEST_SKIP() << "the rest was measured with AVX-512";
  EXPECT_EQ(served_by(128, 784, 1024), "fallback");
  EXPECT_EQ(served_by(32, 200, 512, {"relu"}), "fallback");
  EXPECT_EQ(served_by(31, 200, 512), "onednn");
  EXPECT_EQ(served_by(129, 784, 1024), "onednn");
  EXPECT_EQ(served_by(128, 784, 1536), "onednn");
  EXPECT_EQ(served_by(128, 784, 256), "onednn");
  EXPECT_EQ(served_by(128, 100, 1024), "onednn");
  EXPECT_EQ(served_by(128, 784, 1024, {"gelu"}), "onednn");
  EXPECT_EQ(served_by(128, 784, 1024, {}, true), "onednn");
  EXPECT_EQ(served_by(128, 784, 100), "fallback");
  EXPECT_EQ(served_by(128, 784, 50, {"relu"}), "fallback");
  EXPECT_EQ(served_by(128, 784, 50, {}, true), "onednn");
  EXPECT_EQ(served_by(128, 784, 200), "onednn");
  EXPECT_EQ(served_by(128, 784, 96), "onednn");
  EXPECT_EQ(served_by(128, 784, 10), "onednn");
}
#endif

// In a forked child, kernels run on one thread, even if they were built for several.
TEST_P(Matmul, RunsInAForkedChild) {
  const Tensor a = random_floats(DType::F32, {128, 784}, 7),
               b = random_floats(DType::F32, {784, 96}, 8);
  const TensorType out{DType::F32, {128, 96}};
  const KernelQuery query = query_of("matmul", {a, b}, {out}, attrs_for(false, false, ""));
  expect_same_in_a_forked_child(GetParam(), query, {a, b});
}

INSTANTIATE_TEST_SUITE_P(Implementations, Matmul, testing::ValuesIn(implementations_of("matmul")),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace
}  // namespace ngd::kernels::test
