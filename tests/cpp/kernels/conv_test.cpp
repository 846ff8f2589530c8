// SPDX-License-Identifier: Apache-2.0
// Convolutions and their gradients, every implementation, against plain loops.
#include <functional>

#include "forked.hpp"
#include "harness.hpp"

namespace ngd::kernels::test {
namespace {

struct Case {
  Shape data, weights;
  Integers strides, padding, dilations;
  std::int64_t groups = 1;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {{2, 3, 9}, {4, 3, 3}, {2}, {1, 0}, {1}},
      {{1, 4, 20}, {6, 2, 2}, {1}, {0, 3}, {3}, 2},
      {{2, 3, 7, 6}, {5, 3, 3, 2}, {1, 1}, {1, 1, 0, 0}, {1, 1}},
      {{1, 16, 12, 13}, {32, 16, 3, 3}, {2, 2}, {1, 1, 1, 1}, {1, 1}},
      {{2, 8, 9, 9}, {8, 1, 3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}, 8},
      {{1, 6, 10, 11}, {4, 3, 3, 2}, {3, 1}, {2, 0, 1, 4}, {2, 3}, 2},
      {{3, 5, 4, 4}, {7, 5, 1, 1}, {1, 1}, {0, 0, 0, 0}, {1, 1}},
      {{1, 2, 4, 5, 6}, {3, 2, 2, 3, 2}, {1, 2, 1}, {0, 1, 1, 1, 0, 0}, {1, 1, 2}},
      {{1, 24, 80, 90}, {1, 24, 3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}},  // of several chunks
  };
  return all;
}

Shape result_shape(const Case& c) {
  Shape shape{c.data[0], c.weights[0]};
  for (std::size_t a = 0; a + 2 < c.data.size(); ++a)
    shape.push_back((c.data[2 + a] + c.padding[2 * a] + c.padding[2 * a + 1] -
                     (c.weights[2 + a] - 1) * c.dilations[a] - 1) /
                        c.strides[a] +
                    1);
  return shape;
}

Attrs attrs_for(const Case& c) {
  return attrs_of({{"strides", c.strides},
                   {"padding", c.padding},
                   {"dilations", c.dilations},
                   {"groups", c.groups}});
}

// Calls each(place) for all places of a shape.
void for_places(const Shape& shape, const std::function<void(const Shape&)>& each) {
  Shape place(shape.size());
  for (std::int64_t i = 0; i < element_count(shape); ++i) {
    std::int64_t rest = i;
    for (std::size_t a = shape.size(); a-- > 0; rest /= shape[a]) place[a] = rest % shape[a];
    each(place);
  }
}

std::size_t index_of(const Shape& shape, const Shape& place) {
  std::int64_t index = 0;
  for (std::size_t a = 0; a < shape.size(); ++a) index = index * shape[a] + place[a];
  return static_cast<std::size_t>(index);
}

// Calls each(data, weight, result) with the indices of every product that a convolution adds.
void for_products(const Case& c,
                  const std::function<void(std::size_t, std::size_t, std::size_t)>& each) {
  const Shape result = result_shape(c);
  for_places(result, [&](const Shape& y) {
    for_places(Shape(c.weights.begin() + 1, c.weights.end()), [&](const Shape& k) {
      Shape x{y[0], y[1] / (c.weights[0] / c.groups) * c.weights[1] + k[0]}, w{y[1]};
      w.insert(w.end(), k.begin(), k.end());
      for (std::size_t a = 0; a + 2 < c.data.size(); ++a) {
        x.push_back(y[2 + a] * c.strides[a] - c.padding[2 * a] + k[1 + a] * c.dilations[a]);
        if (x.back() < 0 || x.back() >= c.data[2 + a]) return;
      }
      each(index_of(c.data, x), index_of(c.weights, w), index_of(result, y));
    });
  });
}

class Conv : public testing::TestWithParam<const char*> {};

void expect_near(const Tensor& found, const std::vector<double>& exact,
                 const std::vector<double>& magnitudes, const char* op) {
  const DType dtype = found.type().dtype;
  const double unit = dtype == DType::F16    ? 0x1p-11
                      : dtype == DType::BF16 ? 0x1p-8
                      : dtype == DType::F32  ? 0x1p-22
                                             : 0x1p-50;
  for (std::int64_t i = 0; i < found.count(); ++i) {
    const auto at = static_cast<std::size_t>(i);
    ASSERT_NEAR(found.at(i), exact[at],
                unit * 1.1 * std::fabs(exact[at]) + std::min(unit, 0x1p-18) * magnitudes[at])
        << op << ' ' << to_string(found.type()) << " at " << i;
  }
}

TEST_P(Conv, AllThreeOps) {
  for (const DType dtype : {DType::F16, DType::BF16, DType::F32, DType::F64})
    for (const Case& c : cases()) {
      const Shape shape = result_shape(c);
      const Tensor x = random_floats(dtype, c.data, 1, -1, 1),
                   w = random_floats(dtype, c.weights, 2, -1, 1),
                   dy = random_floats(dtype, shape, 3, -1, 1);
      const TensorType types[] = {{dtype, shape}, {dtype, c.data}, {dtype, c.weights}};
      const std::vector<Tensor> operands[] = {{x, w}, {dy, w}, {x, dy}};
      const char* names[] = {"conv", "conv_data_grad", "conv_weight_grad"};
      std::vector<double> sums[3], magnitudes[3];
      for (int op = 0; op < 3; ++op) {
        sums[op].resize(static_cast<std::size_t>(types[op].count()));
        magnitudes[op].resize(sums[op].size());
      }
      const std::vector<double> xs = x.doubles(), ws = w.doubles(), dys = dy.doubles();
      for_products(c, [&](std::size_t i, std::size_t k, std::size_t j) {
        const double terms[] = {xs[i] * ws[k], dys[j] * ws[k], xs[i] * dys[j]};
        const std::size_t places[] = {j, i, k};
        for (int op = 0; op < 3; ++op) {
          sums[op][places[op]] += terms[op];
          magnitudes[op][places[op]] += std::fabs(terms[op]);
        }
      });
      for (int op = 0; op < 3; ++op) {
        const KernelQuery query = query_of(names[op], operands[op], {types[op]}, attrs_for(c));
        if (!row_of(names[op], GetParam()).accept(query).accepted) {
          ASSERT_STRNE(GetParam(), "portable");
          ASSERT_NE(dtype, DType::F32);
          continue;
        }
        const Tensor found = run(names[op], operands[op], {types[op]}, attrs_for(c), GetParam())[0];
        expect_near(found, sums[op], magnitudes[op], names[op]);
      }
    }
}

TEST_P(Conv, NanStays) {
  const Case c = cases()[3];
  Tensor x = random_floats(DType::F32, c.data, 4);
  x.set(0, std::nan(""));
  const Tensor y = run("conv", {x, random_floats(DType::F32, c.weights, 5)},
                       {{DType::F32, result_shape(c)}}, attrs_for(c), GetParam())[0];
  const std::int64_t places = y.type().shape[2] * y.type().shape[3];
  for (std::int64_t i = 0; i < y.count(); ++i) ASSERT_EQ(std::isnan(y.at(i)), i % places == 0);
}

TEST_P(Conv, Refusals) {
  const Case c = cases()[2];
  const auto refused = [&](const Case& with, Shape result, const char* op = "conv") {
    const KernelQuery query{op,
                            {{DType::F32, with.data}, {DType::F32, with.weights}},
                            {{DType::F32, std::move(result)}},
                            attrs_for(with)};
    return row_of(op, GetParam()).accept(query).reason;
  };
  EXPECT_EQ(refused(c, result_shape(c)), "");
  Shape larger = result_shape(c);
  larger.back() += 1;
  EXPECT_NE(refused(c, larger), "");
  Case wrong = c;
  wrong.weights[1] = 2;
  EXPECT_NE(refused(wrong, result_shape(c)), "");
  wrong = c;
  wrong.strides = {1};
  EXPECT_NE(refused(wrong, result_shape(c)), "");
}

// Kernels run on one thread in a forked child, also those that were made for several.
TEST_P(Conv, RunsInAForkedChild) {
  const Case c = cases()[3];
  const Tensor x = random_floats(DType::F32, c.data, 7),
               w = random_floats(DType::F32, c.weights, 8);
  const TensorType type{DType::F32, result_shape(c)};
  const KernelQuery query = query_of("conv", {x, w}, {type}, attrs_for(c));
  expect_same_in_a_forked_child(row_of("conv", GetParam()), query, {x, w});
}

INSTANTIATE_TEST_SUITE_P(Implementations, Conv, testing::ValuesIn(implementations_of("conv")),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace
}  // namespace ngd::kernels::test
