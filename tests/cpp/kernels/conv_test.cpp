// SPDX-License-Identifier: Apache-2.0
// Tests convolutions and their gradients, in every implementation, against plain loops.
#include <functional>

#include "device/threads.hpp"
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
      {{1, 24, 80, 90}, {1, 24, 3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}},  // several chunks
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

// Call each(position) for all positions of a shape.
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

// Call each(data, weight, result) with the indices of every multiplication of a convolution.
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
        if (offer_of(query, GetParam()).kernel == nullptr) {
          ASSERT_STRNE(GetParam(), "fallback");
          ASSERT_NE(dtype, DType::F32);
          continue;
        }
        const Tensor found = run(names[op], operands[op], {types[op]}, attrs_for(c), GetParam())[0];
        expect_near(found, sums[op], magnitudes[op], names[op]);
      }
    }
}

TEST_P(Conv, ANanStaysANan) {
  const Case c = cases()[3];
  Tensor x = random_floats(DType::F32, c.data, 4);
  x.set(0, std::nan(""));
  const Tensor y = run("conv", {x, random_floats(DType::F32, c.weights, 5)},
                       {{DType::F32, result_shape(c)}}, attrs_for(c), GetParam())[0];
  const std::int64_t places = y.type().shape[2] * y.type().shape[3];
  for (std::int64_t i = 0; i < y.count(); ++i) ASSERT_EQ(std::isnan(y.at(i)), i % places == 0);
}

TEST_P(Conv, RejectsUnsupportedShapes) {
  const Case c = cases()[2];
  const auto refused = [&](const Case& with, Shape result, const char* op = "conv") {
    const KernelQuery query{op,
                            {{DType::F32, with.data}, {DType::F32, with.weights}},
                            {{DType::F32, std::move(result)}},
                            attrs_for(with)};
    return offer_of(query, GetParam()).refusal;
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

// In a forked child, kernels run on one thread, even if they were built for several.
TEST_P(Conv, RunsInAForkedChild) {
  const Case c = cases()[3];
  const Tensor x = random_floats(DType::F32, c.data, 7),
               w = random_floats(DType::F32, c.weights, 8);
  const TensorType type{DType::F32, result_shape(c)};
  const KernelQuery query = query_of("conv", {x, w}, {type}, attrs_for(c));
  expect_same_in_a_forked_child(GetParam(), query, {x, w});
}

// The shapes that any implementation supports.
std::vector<const char*> general() {
  std::vector<const char*> names = implementations_of("conv");
  std::erase_if(names,
                [](std::string_view name) { return name != "onednn" && name != "fallback"; });
  return names;
}

INSTANTIATE_TEST_SUITE_P(Implementations, Conv, testing::ValuesIn(general()),
                         [](const auto& param) { return std::string(param.param); });

// The size, stride and dilation of a kernel along an axis.
struct Reach {
  std::int64_t kernel = 3, stride = 1, dilation = 1;

  std::int64_t extent(std::int64_t windows) const {
    return (windows - 1) * stride + (kernel - 1) * dilation + 1;
  }
};

// Operands with channels last, and the results that plain loops compute in float64.
struct Last {
  std::int64_t images, height, width, in, out;
  Integers padding;
  Reach reach;
  Shape x, w, y;
  Tensor data, weights, dy;
  std::vector<double> exact[3];

  Last(Shape made, std::int64_t in_, std::int64_t out_, Integers padding_, Reach reach_ = {})
      : images(made[0]),
        height(reach_.extent(made[1]) - padding_[0] - padding_[1]),
        width(reach_.extent(made[2]) - padding_[2] - padding_[3]),
        in(in_),
        out(out_),
        padding(std::move(padding_)),
        reach(reach_),
        x{images, height, width, in},
        w{out, in, reach.kernel, reach.kernel},
        y{images, made[1], made[2], out},
        data(random_floats(DType::F32, x, 1, -1, 1)),
        weights(random_floats(DType::F32, w, 2, -1, 1)),
        dy(random_floats(DType::F32, y, 3, -1, 1)) {
    const Tensor* operands[] = {&dy, &data, &weights};
    for (int op = 0; op < 3; ++op)
      exact[op].resize(static_cast<std::size_t>(operands[op]->count()));
    add_products();
  }

  void add_products() {
    const std::vector<double> xs = data.doubles(), ws = weights.doubles(), ys = dy.doubles();
    const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
    const std::int64_t places = reach.kernel * reach.kernel;
    for (std::int64_t place = 0; place < images * y[1] * y[2] * places; ++place) {
      const std::int64_t k = place % places, made = place / places;
      const auto read_at = [&](std::int64_t window, std::int64_t part, std::int64_t before) {
        return window * reach.stride + part * reach.dilation - before;
      };
      const std::int64_t row = read_at(made / y[2] % y[1], k / reach.kernel, padding[0]),
                         column = read_at(made % y[2], k % reach.kernel, padding[2]);
      if (row < 0 || row >= height || column < 0 || column >= width) continue;
      const std::int64_t read = (made / y[2] / y[1] * height + row) * width + column;
      for (std::int64_t o = 0; o < out; ++o)
        for (std::int64_t c = 0; c < in; ++c) {
          const std::size_t i = at(read * in + c), j = at(made * out + o),
                            l = at((o * in + c) * places + k);
          exact[0][j] += xs[i] * ws[l];
          exact[1][i] += ys[j] * ws[l];
          exact[2][l] += xs[i] * ys[j];
        }
    }
  }

  Attrs attrs() const {
    return attrs_of({{"strides", Integers{reach.stride, reach.stride}},
                     {"padding", padding},
                     {"dilations", Integers{reach.dilation, reach.dilation}},
                     {"groups", 1},
                     {"channels_last", 1}});
  }
};

// Relative to the typical size of a result, 5e-5 is more than the rounding, and less than any
// mistake.
void expect_close(const Tensor& found, const std::vector<double>& exact, const char* op) {
  double squares = 0;
  for (const double value : exact) squares += value * value;
  const double typical = std::sqrt(squares / static_cast<double>(exact.size()));
  for (std::int64_t i = 0; i < found.count(); ++i)
    ASSERT_NEAR(found.at(i), exact[static_cast<std::size_t>(i)], 5e-5 * typical)
        << op << ' ' << to_string(found.type()) << " at " << i;
}

void expect_all_three(const Last& c) {
  expect_close(run("conv", {c.data, c.weights}, {{DType::F32, c.y}}, c.attrs(), "winograd")[0],
               c.exact[0], "conv");
  expect_close(
      run("conv_data_grad", {c.dy, c.weights}, {{DType::F32, c.x}}, c.attrs(), "winograd")[0],
      c.exact[1], "conv_data_grad");
  expect_close(
      run("conv_weight_grad", {c.data, c.dy}, {{DType::F32, c.w}}, c.attrs(), "winograd")[0],
      c.exact[2], "conv_weight_grad");
}

TEST(Winograd, AllThreeOps) {
  std::mt19937 random(1);
  const auto draw = [&](std::int64_t from, std::int64_t to) {
    return std::uniform_int_distribution<std::int64_t>(from, to)(random);
  };
  for (int i = 0; i < 12; ++i)
    expect_all_three({{draw(1, 3), draw(15, 23), draw(15, 23)},
                      16 * draw(1, 5),
                      16 * draw(1, 5),
                      {draw(0, 2), draw(0, 2), draw(0, 2), draw(0, 2)}});
}

// So many images that each thread has several blocks of tiles, and separate sums.
std::int64_t many_images() { return 6 * std::min(device::thread_count(), 16); }

TEST(Winograd, ManyTiles) { expect_all_three({{many_images(), 16, 17}, 16, 80, {1, 1, 1, 1}}); }

// Kernels too large for the caches, and sums over several blocks of tiles.
TEST(Winograd, ManyChannels) { expect_all_three({{4, 18, 20}, 304, 320, {1, 1, 1, 1}}); }

TEST(Winograd, Bias) {
  const Last c({2, 14, 15}, 32, 48, {1, 1, 1, 1});
  const Tensor bias = random_floats(DType::F32, {c.out}, 4);
  std::vector<double> exact = c.exact[0];
  for (std::size_t i = 0; i < exact.size(); ++i)
    exact[i] += bias.at(static_cast<std::int64_t>(i) % c.out);
  expect_close(
      run("conv", {c.data, c.weights, bias}, {{DType::F32, c.y}}, c.attrs(), "winograd")[0], exact,
      "conv");
}

TEST(Winograd, RunsInAForkedChild) {
  const Last c({2, 14, 15}, 32, 48, {1, 1, 1, 1});
  const KernelQuery query = query_of("conv", {c.data, c.weights}, {{DType::F32, c.y}}, c.attrs());
  expect_same_in_a_forked_child("winograd", query, {c.data, c.weights});
  const Last many({many_images(), 16, 17}, 16, 32, {1, 1, 1, 1});
  const KernelQuery gradient =
      query_of("conv_weight_grad", {many.data, many.dy}, {{DType::F32, many.w}}, many.attrs());
  expect_same_in_a_forked_child("winograd", gradient, {many.data, many.dy});
}

// A NaN reaches all results whose windows contain it, and others only in its tile.
TEST(Winograd, NanStaysInItsTile) {
  Last c({1, 16, 16}, 16, 16, {1, 1, 1, 1});
  c.data.set((6 * c.width + 6) * c.in + 3, std::nan(""));
  const Tensor y = run("conv", {c.data, c.weights}, {{DType::F32, c.y}}, c.attrs(), "winograd")[0];
  for (std::int64_t i = 0; i < y.count(); ++i) {
    const std::int64_t row = i / c.out / 16, column = i / c.out % 16;
    const bool sees = std::abs(row - 6) <= 1 && std::abs(column - 6) <= 1;
    const bool in_tile = row / 4 == 1 && column / 4 == 1;
    if (in_tile && !sees) continue;
    ASSERT_EQ(std::isnan(y.at(i)), sees) << row << ' ' << column;
  }
}

TEST(Placewise, GradientOfWeights) {
  const Last all[] = {
      {{2, 12, 13}, 128, 144, {1, 1, 1, 1}, {3, 2, 1}},
      {{3, 11, 10}, 192, 128, {0, 2, 3, 1}, {3, 2, 2}},
      {{128, 2, 2}, 128, 128, {4, 2, 4, 2}, {3, 2, 2}},  // some positions are only in the padding

      {{1, 9, 11}, 1040, 32, {0, 0, 0, 0}, {1, 1, 1}},
      {{1, 5, 6}, 1040, 1056, {0, 0, 0, 0}, {1, 2, 1}},  // sums that threads share
      {{16, 64, 65}, 16, 64, {0, 0, 0, 0}, {1, 1, 1}},   // a dy too large for the caches
  };
  for (const Last& c : all)
    expect_close(
        run("conv_weight_grad", {c.data, c.dy}, {{DType::F32, c.w}}, c.attrs(), "weight_grad")[0],
        c.exact[2], "conv_weight_grad");
}

TEST(Placewise, RunsInAForkedChild) {
  const Last c({2, 12, 13}, 128, 144, {1, 1, 1, 1}, {3, 2, 1});
  const KernelQuery query =
      query_of("conv_weight_grad", {c.data, c.dy}, {{DType::F32, c.w}}, c.attrs());
  expect_same_in_a_forked_child("weight_grad", query, {c.data, c.dy});
}

TEST(Placewise, RejectsShapesThatOneDnnComputesFaster) {
  const Last small({1, 9, 11}, 64, 32, {0, 0, 0, 0}, {1, 1, 1});
  const KernelQuery query =
      query_of("conv_weight_grad", {small.data, small.dy}, {{DType::F32, small.w}}, small.attrs());
  EXPECT_EQ(offer_of(query, "weight_grad").refusal, "oneDNN is faster, or nearly so");
}

TEST(Winograd, RejectsUnsupportedShapes) {
  const auto refused = [](Shape x, Shape w, Shape y, DType dtype,
                          const std::function<void(Attrs&)>& change) {
    Attrs attrs = attrs_of({{"strides", Integers{1, 1}},
                            {"padding", Integers{1, 1, 1, 1}},
                            {"dilations", Integers{1, 1}},
                            {"groups", 1},
                            {"channels_last", 1}});
    change(attrs);
    const KernelQuery query{"conv", {{dtype, x}, {dtype, w}}, {{dtype, y}}, attrs};
    return offer_of(query, "winograd").refusal;
  };
  const auto as_it_is = [](Attrs&) {};
  const Shape x{2, 16, 16, 32}, w{64, 32, 3, 3}, y{2, 16, 16, 64};
  const char* apart = "the kernel is not 3 x 3 with stride and dilation 1";
  const char* kind =
      "the convolution needs two axes, channels last, one group and no post-operation";
  EXPECT_EQ(refused(x, w, y, DType::F32, as_it_is), "");
  EXPECT_EQ(refused(x, w, y, DType::F64, as_it_is), "the operands are not f32");
  EXPECT_EQ(refused(x, {64, 16, 3, 3}, y, DType::F32, [](Attrs& a) { a.set("groups", 2); }), kind);
  EXPECT_EQ(
      refused(x, w, {2, 8, 8, 64}, DType::F32, [](Attrs& a) { a.set("strides", Integers{2, 2}); }),
      apart);
  EXPECT_EQ(refused(x, w, {2, 14, 14, 64}, DType::F32,
                    [](Attrs& a) { a.set("dilations", Integers{2, 2}); }),
            apart);
  EXPECT_EQ(refused(x, w, {2, 20, 20, 64}, DType::F32,
                    [](Attrs& a) { a.set("padding", Integers{3, 3, 3, 3}); }),
            apart);
  EXPECT_EQ(refused(x, w, y, DType::F32,
                    [](Attrs& a) { a.set("post", std::vector<std::string>{"gelu"}); }),
            kind);
  EXPECT_EQ(refused({2, 32, 16, 16}, w, {2, 64, 16, 16}, DType::F32,
                    [](Attrs& a) { a.set("channels_last", 0); }),
            kind);
  EXPECT_EQ(refused({2, 16, 16, 0}, {64, 0, 3, 3}, y, DType::F32, as_it_is),
            "the operands have no elements to convolve");
  EXPECT_EQ(refused({2, 16, 16, 24}, {64, 24, 3, 3}, y, DType::F32, as_it_is),
            "the channels do not fill whole vectors");
  EXPECT_EQ(refused({3, 8, 8, 32}, w, {3, 8, 8, 64}, DType::F32, as_it_is),
            "there are few tiles, or they are mostly empty");
  EXPECT_EQ(refused({64, 5, 5, 32}, w, {64, 5, 5, 64}, DType::F32, as_it_is),
            "there are few tiles, or they are mostly empty");
}

}  // namespace
}  // namespace ngd::kernels::test
