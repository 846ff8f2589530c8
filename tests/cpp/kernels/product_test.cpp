// SPDX-License-Identifier: Apache-2.0
// Tests elementwise_product against loops in double: the matmuls, then the kernel body.
#include <array>
#include <functional>

#include "forked.hpp"
#include "harness.hpp"

namespace ngd::kernels::test {
namespace {

// `products` matmuls of [m, k] by [k, n], or of their transposes, and one operand of the body.
struct Case {
  std::int64_t m, n, k;
  int products;
  bool transpose_a = true, transpose_b = false;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {1, 1, 1, 1},
      {3, 5, 2, 1},
      {7, 4, 9, 2},
      {33, 100, 17, 1},
      {64, 10, 128, 3},
      {784, 100, 128, 1},
      {100, 1100, 60, 1},
      {129, 530, 33, 2},
      {50, 300, 256, 4},
      {31, 48, 5, 1, false, false},
      {40, 65, 12, 2, false, true},
      {65, 67, 20, 1, true, true},
      {96, 12, 20, 2},
  };
  return all;
}

struct Operands {
  std::vector<Tensor> inputs;
  std::vector<double> products;  // the sum of the matmuls
};

Operands random_operands(const Case& c, DType dtype) {
  Operands made{{}, std::vector<double>(static_cast<std::size_t>(c.m * c.n))};
  for (int p = 0; p < c.products; ++p) {
    const auto seed = static_cast<unsigned>(2 * p + 1);
    const Tensor a = random_floats(dtype, c.transpose_a ? Shape{c.k, c.m} : Shape{c.m, c.k}, seed);
    const Tensor b =
        random_floats(dtype, c.transpose_b ? Shape{c.n, c.k} : Shape{c.k, c.n}, seed + 1);
    for (std::int64_t i = 0; i < c.m; ++i)
      for (std::int64_t q = 0; q < c.k; ++q)
        for (std::int64_t j = 0; j < c.n; ++j)
          made.products[static_cast<std::size_t>(i * c.n + j)] +=
              a.at(c.transpose_a ? q * c.m + i : i * c.k + q) *
              b.at(c.transpose_b ? j * c.k + q : q * c.n + j);
    made.inputs.push_back(a);
    made.inputs.push_back(b);
  }
  return made;
}

// The kernel body: i0 minus 0.5 times the sum of the matmuls.
Attrs attrs_for(const Case& c, DType dtype, const Integers& strides) {
  const std::string type = dtype == DType::F32 ? ":f32 " : ":f64 ";
  std::string program, sum = "i1";
  for (int p = 1; p < c.products; ++p) {
    program += concat("add", type, sum, " i", p + 1, ";");
    sum = concat("t", p - 1);
  }
  program += concat("multiply", type, sum, " #0.5;subtract", type, "i0 t", c.products - 1);
  Integers products, all = strides;
  for (int p = 0; p < c.products; ++p) {
    products.push_back(p + 1);
    all.insert(all.end(), {c.m == 1 ? 0 : c.n, c.n == 1 ? 0 : 1});
  }
  return attrs_of({{"program", program},
                   {"results", Integers{c.products}},
                   {"input_strides", all},
                   {"products", products},
                   {"product_shape", Integers{c.m, c.n}},
                   {"transpose_a", std::int64_t{c.transpose_a}},
                   {"transpose_b", std::int64_t{c.transpose_b}}});
}

// An operand of `count` elements, read with these strides.
void expect_case(const Case& c, DType dtype, Shape shape, const Integers& strides, bool in_place) {
  Operands operands = random_operands(c, dtype);
  const Tensor w = random_floats(dtype, std::move(shape), 99);
  operands.inputs.push_back(w);
  const std::vector<InPlace> pairs =
      in_place ? std::vector<InPlace>{{0, 2 * c.products}} : std::vector<InPlace>{};
  const Tensor out = run("elementwise_product", operands.inputs, {{dtype, {c.m, c.n}}},
                         attrs_for(c, dtype, strides), "", pairs)[0];
  const double tolerance = (dtype == DType::F32 ? 1e-5 : 1e-13) * static_cast<double>(c.k);
  for (std::int64_t i = 0; i < c.m; ++i)
    for (std::int64_t j = 0; j < c.n; ++j) {
      const auto at = static_cast<std::size_t>(i * c.n + j);
      const double want = w.at(i * strides[0] + j * strides[1]) - 0.5 * operands.products[at];
      ASSERT_NEAR(out.at(i * c.n + j), want, tolerance)
          << c.m << 'x' << c.n << 'x' << c.k << " row " << i << " column " << j;
    }
}

TEST(ElementwiseProduct, TheBodyReadsMatmulsOfEveryShape) {
  for (const Case& c : cases())
    for (const DType dtype : {DType::F32, DType::F64}) {
      const Integers dense{c.m == 1 ? 0 : c.n, c.n == 1 ? 0 : 1};
      expect_case(c, dtype, {c.m, c.n}, dense, false);
      expect_case(c, dtype, {c.m, c.n}, dense, true);
    }
}

TEST(ElementwiseProduct, OtherOperandsBroadcast) {
  for (const Case& c : {Case{33, 100, 17, 1}, Case{70, 1100, 12, 2}, Case{40, 530, 8, 1}})
    for (const DType dtype : {DType::F32, DType::F64}) {
      expect_case(c, dtype, {c.n}, {0, 1}, false);
      expect_case(c, dtype, {c.m, 1}, {1, 0}, false);
      expect_case(c, dtype, {}, {0, 0}, false);
      expect_case(c, dtype, {c.n, c.m}, {1, c.m}, false);
    }
}

TEST(ElementwiseProduct, ARowOfElementsEqualsAMatrix) {
  const Case c{96, 40, 30, 2};
  Operands operands = random_operands(c, DType::F64);
  operands.inputs.push_back(random_floats(DType::F64, {c.m * c.n}, 99));
  Attrs attrs = attrs_for(c, DType::F64, {0, 0});
  attrs.set("input_strides", Integers{1, 1, 1});
  const Tensor out = run("elementwise_product", operands.inputs, {{DType::F64, {c.m * c.n}}}, attrs,
                         "", {{0, 4}})[0];
  for (std::int64_t i = 0; i < out.count(); ++i)
    ASSERT_NEAR(out.at(i),
                operands.inputs[4].at(i) - 0.5 * operands.products[static_cast<std::size_t>(i)],
                1e-12);
}

// Some rows of a gradient, computed in the update, have the bits of the whole gradient.
TEST(ElementwiseProduct, TheBitsAreThoseOfTheMatmulThatIsReduced) {
  for (const auto& [m, n, k] : std::vector<std::array<std::int64_t, 3>>{{200, 4096, 2},
                                                                        {200, 512, 4},
                                                                        {16, 1000, 4},
                                                                        {784, 1024, 128},
                                                                        {100, 130, 33},
                                                                        {784, 100, 64},
                                                                        {200, 70, 33}})
    for (const DType dtype : {DType::F32, DType::F64}) {
      const Case whole{m, n, k, 1}, part{m / 2, n, k, 1};
      const std::vector<Tensor> factors = random_operands(whole, dtype).inputs;
      const Tensor product =
          run("matmul", factors, {{dtype, {m, n}}},
              attrs_of({{"transpose_a", std::int64_t{1}}, {"transpose_b", std::int64_t{0}}}))[0];
      Tensor rows(dtype, {k, m / 2});  // the columns of A after the first half
      for (std::int64_t q = 0; q < k; ++q)
        for (std::int64_t i = 0; i < m / 2; ++i)
          rows.set(q * (m / 2) + i, factors[0].at(q * m + m - m / 2 + i));
      Attrs attrs = attrs_for(part, dtype, {n, 1});
      attrs.set("program", concat("add:", dtype == DType::F32 ? "f32" : "f64", " i0 i1"));
      attrs.set("results", Integers{0});
      const Tensor zeros(dtype, {m / 2, n});
      const Tensor found =
          run("elementwise_product", {rows, factors[1], zeros}, {{dtype, {m / 2, n}}}, attrs)[0];
      for (std::int64_t i = 0; i < found.count(); ++i)
        ASSERT_EQ(found.at(i), product.at((m - m / 2) * n + i)) << m << 'x' << n << 'x' << k;
    }
}

TEST(ElementwiseProduct, RejectsUnsupportedBodies) {
  const Case c{12, 10, 6, 2};
  const Operands operands = random_operands(c, DType::F32);
  const auto refused = [&](const std::function<void(KernelQuery&)>& change) {
    std::vector<Tensor> inputs = operands.inputs;
    inputs.push_back(random_floats(DType::F32, {12, 10}, 1));
    KernelQuery query = query_of("elementwise_product", inputs, {{DType::F32, {12, 10}}},
                                 attrs_for(c, DType::F32, {10, 1}));
    change(query);
    return offer_of(query, "").refusal;
  };
  const auto set = [](const char* name, Attr value) {
    return [=](KernelQuery& query) { query.attrs.set(name, value); };
  };
  EXPECT_EQ(refused([](KernelQuery&) {}), "");
  EXPECT_NE(refused(set("products", Integers{})), "");
  EXPECT_NE(refused(set("products", Integers{2, 1})), "");
  EXPECT_NE(refused(set("products", Integers{1, 9})), "");
  EXPECT_NE(refused(set("product_shape", Integers{10, 12})), "");
  EXPECT_NE(refused(set("product_shape", Integers{120})), "");
  EXPECT_NE(refused(set("input_strides", Integers{10, 1, 1, 12, 10, 1})), "");
  EXPECT_NE(refused([](KernelQuery& query) { query.inputs[2].shape = {7, 12}; }), "");
  EXPECT_NE(refused([](KernelQuery& query) { query.inputs[0].dtype = DType::BF16; }), "");
  EXPECT_NE(refused([](KernelQuery& query) {
              for (std::size_t i = 0; i < 4; ++i) query.inputs[i].shape[0] = 257;
            }),
            "");
}

TEST(ElementwiseProduct, RunsInAForkedChild) {
  const Case c{784, 100, 128, 1};
  Operands operands = random_operands(c, DType::F32);
  operands.inputs.push_back(random_floats(DType::F32, {c.m, c.n}, 99));
  const KernelQuery query =
      query_of("elementwise_product", operands.inputs, {{DType::F32, {c.m, c.n}}},
               attrs_for(c, DType::F32, {c.n, 1}));
  expect_same_in_a_forked_child("", query, operands.inputs);
}

}  // namespace
}  // namespace ngd::kernels::test
