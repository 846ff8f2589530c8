// SPDX-License-Identifier: Apache-2.0
// attend and attend_grad against formulas in float64 that store all attention logits.
#include <limits>

#include "device/threads.hpp"
#include "harness.hpp"

namespace ngd::kernels::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

struct Case {
  std::int64_t batch, heads, groups, queries, keys, extent, width;
  bool causal;
  Shape mask;  // empty if there is none
  DType mask_dtype = DType::Bool;
};

const Case kCases[] = {
    {1, 1, 1, 1, 1, 1, 1, false, {}},
    {1, 2, 2, 64, 128, 64, 64, false, {}},
    {2, 4, 2, 65, 129, 16, 24, true, {}},
    {1, 3, 1, 130, 300, 7, 33, true, {}},
    {3, 2, 2, 300, 70, 48, 5, true, {}},
    {2, 2, 1, 70, 140, 8, 8, false, {70, 140}},
    {2, 2, 1, 70, 140, 8, 8, true, {2, 1, 1, 140}, DType::F32},
    {2, 2, 2, 70, 140, 8, 8, false, {2, 70, 1}, DType::F32},
    {2, 2, 2, 66, 131, 8, 8, true, {2, 2, 66, 131}, DType::F32},
    {2, 0, 2, 5, 6, 3, 4, false, {}},
    {2, 2, 2, 5, 6, 3, 0, true, {}},
    {2, 2, 2, 5, 6, 0, 3, true, {}},
    {0, 2, 2, 5, 6, 2, 3, false, {}},
};

Attrs attrs(const Case& c) {
  return attrs_of(
      {{"causal", std::int64_t{c.causal}}, {"heads_last", std::int64_t{0}}, {"scale", 0.3}});
}

struct Operands {
  explicit Operands(const Case& c, DType dtype = DType::F32)
      : q(random_floats(dtype, {c.batch, c.heads, c.queries, c.extent}, 1)),
        k(random_floats(dtype, {c.batch, c.groups, c.keys, c.extent}, 2)),
        v(random_floats(dtype, {c.batch, c.groups, c.keys, c.width}, 3)),
        dy(random_floats(dtype, {c.batch, c.heads, c.queries, c.width}, 4)),
        dlogsum(random_floats(dtype, {c.batch, c.heads, c.queries}, 5)) {
    if (c.mask.empty()) return;
    const DType flags = c.mask_dtype == DType::Bool ? DType::Bool : dtype;
    Tensor given = random_tensor(flags, c.mask, 6, -2, 2);
    for (std::int64_t i = 0; i < given.count(); ++i)
      if (flags != DType::Bool && given.at(i) == -2) given.set(i, -kInf);
    mask.push_back(given);
  }
  std::vector<Tensor> forward() const {
    std::vector<Tensor> all{q, k, v};
    all.insert(all.end(), mask.begin(), mask.end());
    return all;
  }
  std::vector<Tensor> backward(const std::vector<Tensor>& results) const {
    std::vector<Tensor> all{q, k, v, results[0], results[1], dy, dlogsum};
    all.insert(all.end(), mask.begin(), mask.end());
    return all;
  }
  std::vector<TensorType> results() const { return {dy.type(), dlogsum.type()}; }
  std::vector<TensorType> slopes() const { return {q.type(), k.type(), v.type()}; }

  Tensor q, k, v, dy, dlogsum;
  std::vector<Tensor> mask;
};

double addend(const Case& c, const Operands& o, std::int64_t b, std::int64_t h, std::int64_t i,
              std::int64_t j) {
  if (c.causal && j > i) return -kInf;
  if (o.mask.empty()) return 0;
  const std::int64_t place[] = {b, h, i, j};
  std::int64_t at = 0;
  for (std::size_t axis = 0; axis < c.mask.size(); ++axis)
    at = at * c.mask[axis] + (c.mask[axis] == 1 ? 0 : place[4 - c.mask.size() + axis]);
  const double given = o.mask[0].at(at);
  return o.mask[0].type().dtype == DType::Bool ? (given != 0 ? 0 : -kInf) : given;
}

struct Expected {
  std::vector<double> y, logsum, dq, dk, dv;
};

Expected formulas(const Case& c, const Operands& o) {
  const auto zeros = [](const Tensor& t) {
    return std::vector<double>(static_cast<std::size_t>(t.count()));
  };
  Expected e{zeros(o.dy), zeros(o.dlogsum), zeros(o.q), zeros(o.k), zeros(o.v)};
  for (std::int64_t row = 0; row < c.batch * c.heads * c.queries; ++row) {
    const std::int64_t i = row % c.queries, head = row / c.queries, h = head % c.heads;
    const std::int64_t b = head / c.heads, g = h / (c.heads / c.groups);
    const std::int64_t key = (b * c.groups + g) * c.keys;
    const auto dot = [](const Tensor& x, std::int64_t a, const Tensor& y, std::int64_t from,
                        std::int64_t n) {
      double sum = 0;
      for (std::int64_t p = 0; p < n; ++p) sum += x.at(a * n + p) * y.at(from * n + p);
      return sum;
    };
    std::vector<double> weights;
    double top = -kInf, total = 0, expected = 0;
    for (std::int64_t j = 0; j < c.keys; ++j) {
      const double more = addend(c, o, b, h, i, j);
      weights.push_back(more == -kInf ? more : 0.3 * dot(o.q, row, o.k, key + j, c.extent) + more);
      top = std::max(top, weights.back());
    }
    for (double& w : weights) total += w = top == -kInf ? 0 : std::exp(w - top);
    for (double& w : weights) w /= total == 0 ? 1 : total;
    e.logsum[static_cast<std::size_t>(row)] = total == 0 ? 0 : top + std::log(total);
    std::vector<double> slopes;
    for (std::int64_t j = 0; j < c.keys; ++j) {
      slopes.push_back(dot(o.dy, row, o.v, key + j, c.width));
      expected += weights[static_cast<std::size_t>(j)] * slopes.back();
    }
    for (std::int64_t j = 0; j < c.keys; ++j) {
      const double w = weights[static_cast<std::size_t>(j)];
      const double slope =
          0.3 * w * (slopes[static_cast<std::size_t>(j)] - expected + o.dlogsum.at(row));
      for (std::int64_t p = 0; p < c.width; ++p) {
        const auto own = static_cast<std::size_t>(row * c.width + p);
        const auto other = static_cast<std::size_t>((key + j) * c.width + p);
        e.y[own] += w * o.v.at((key + j) * c.width + p);
        e.dv[other] += w * o.dy.at(row * c.width + p);
      }
      for (std::int64_t p = 0; p < c.extent; ++p) {
        e.dq[static_cast<std::size_t>(row * c.extent + p)] +=
            slope * o.k.at((key + j) * c.extent + p);
        e.dk[static_cast<std::size_t>((key + j) * c.extent + p)] +=
            slope * o.q.at(row * c.extent + p);
      }
    }
  }
  return e;
}

void expect_near(const Tensor& found, const std::vector<double>& wanted, const char* what,
                 const Case& c) {
  double size = 1;
  for (const double w : wanted) size = std::max(size, std::fabs(w));
  const double bound = size * (found.type().dtype == DType::F64 ? 1e-13 : 3e-6);
  for (std::int64_t i = 0; i < found.count(); ++i)
    ASSERT_NEAR(found.at(i), wanted[static_cast<std::size_t>(i)], bound)
        << what << " at " << i << " of " << c.queries << " queries, " << c.keys << " keys";
}

TEST(Attention, EqualsTheFormulas) {
  for (const DType dtype : {DType::F32, DType::F64})
    for (const Case& c : kCases) {
      const Operands o(c, dtype);
      const Expected e = formulas(c, o);
      const std::vector<Tensor> made = run("attend", o.forward(), o.results(), attrs(c));
      expect_near(made[0], e.y, "value", c);
      expect_near(made[1], e.logsum, "logsum", c);
      const std::vector<Tensor> slopes = run("attend_grad", o.backward(made), o.slopes(), attrs(c));
      expect_near(slopes[0], e.dq, "dq", c);
      expect_near(slopes[1], e.dk, "dk", c);
      expect_near(slopes[2], e.dv, "dv", c);
    }
}

// [batch, a, b, elements] as [batch, b, a, elements].
Tensor swapped(const Tensor& x) {
  Shape shape = x.type().shape;
  std::swap(shape[1], shape[2]);
  Tensor y(x.type().dtype, shape);
  for (std::int64_t i = 0; i < y.count(); ++i) {
    const std::int64_t p = i % shape[3], a = i / shape[3] % shape[2];
    const std::int64_t b = i / (shape[3] * shape[2]) % shape[1];
    const std::int64_t n = i / (shape[3] * shape[2] * shape[1]);
    y.set(i, x.at(((n * shape[2] + a) * shape[1] + b) * shape[3] + p));
  }
  return y;
}

TEST(Attention, HeadsMayBeAfterThePositions) {
  for (const Case& c : kCases) {
    Operands o(c);
    std::vector<Tensor> wanted = run("attend", o.forward(), o.results(), attrs(c));
    const std::vector<Tensor> slopes = run("attend_grad", o.backward(wanted), o.slopes(), attrs(c));
    for (Tensor* t : {&o.q, &o.k, &o.v, &o.dy}) *t = swapped(*t);
    Attrs last = attrs(c);
    last.set("heads_last", std::int64_t{1});
    const std::vector<Tensor> made = run("attend", o.forward(), o.results(), last);
    EXPECT_EQ(swapped(made[0]), wanted[0]);
    EXPECT_EQ(made[1], wanted[1]);
    const std::vector<Tensor> found = run("attend_grad", o.backward(made), o.slopes(), last);
    for (const std::size_t k : {0, 1, 2}) EXPECT_EQ(swapped(found[k]), slopes[k]) << k;
  }
}

// One thread visits all pairs of blocks once. More threads than units visit them twice.
TEST(Attention, BitsDoNotDependOnTheNumberOfThreads) {
  for (const Case& c : kCases) {
    const Operands o(c);
    std::vector<Tensor> first;
    for (const int threads : {1, 2, 3, 7}) {
      device::set_thread_share(threads);
      ASSERT_EQ(device::thread_count(), threads);
      std::vector<Tensor> made = run("attend", o.forward(), o.results(), attrs(c));
      for (Tensor& t : run("attend_grad", o.backward(made), o.slopes(), attrs(c)))
        made.push_back(t);
      if (first.empty()) first = made;
      EXPECT_EQ(made, first) << threads << " threads";
    }
    device::set_thread_share(device::available_cores());
  }
}

TEST(Attention, ResultsMayBeUnread) {
  for (const Case& c : {kCases[3], kCases[8]}) {
    const Operands o(c);
    const std::vector<Tensor> made = run("attend", o.forward(), o.results(), attrs(c));
    for (const std::size_t k : {0, 1})
      EXPECT_EQ(run("attend", o.forward(), o.results(), attrs(c), "", {}, {1 - k})[k], made[k]);
    const std::vector<Tensor> all = o.backward(made);
    const std::vector<Tensor> slopes = run("attend_grad", all, o.slopes(), attrs(c));
    for (const std::size_t k : {0, 1, 2})
      for (const std::size_t other : {1, 2}) {
        const std::size_t absent = (k + other) % 3, kept = 3 - k - absent;
        const auto some = run("attend_grad", all, o.slopes(), attrs(c), "", {}, {absent});
        EXPECT_EQ(some[k], slopes[k]);
        EXPECT_EQ(some[kept], slopes[kept]);
        EXPECT_EQ(run("attend_grad", all, o.slopes(), attrs(c), "", {}, {absent, kept})[k],
                  slopes[k]);
      }
  }
}

// A row that attends to a NaN is NaN. The other rows do not change.
TEST(Attention, NaNStaysNaN) {
  const Case c{1, 1, 1, 200, 200, 16, 16, true, {}};
  const Operands clean(c);
  const Tensor wanted = run("attend", clean.forward(), clean.results(), attrs(c))[0];
  for (const double bad : {std::nan(""), kInf, -kInf}) {
    Operands o(c);
    o.k.set(150 * 16 + 3, bad);
    const std::vector<Tensor> made = run("attend", o.forward(), o.results(), attrs(c));
    for (std::int64_t row = 0; row < 150; ++row)
      ASSERT_EQ(made[0].at(row * 16), wanted.at(row * 16)) << row;
    for (std::int64_t row = 150; row < 200; ++row) {
      const bool hidden = o.q.at(row * 16 + 3) * bad == -kInf;  // a logit of -inf is not NaN
      ASSERT_EQ(std::isnan(made[0].at(row * 16)), !hidden) << row;
      ASSERT_EQ(std::isnan(made[1].at(row)), !hidden) << row;
    }
  }
  Operands o({1, 1, 1, 2, 3, 1, 1, false, {2, 3}, DType::F32});
  for (int i = 0; i < 6; ++i) o.mask[0].set(i, i < 3 ? -kInf : 0);
  for (int i = 0; i < 3; ++i) o.k.set(i, -kInf);
  o.q.set(1, 1);
  const auto made =
      run("attend", o.forward(), o.results(), attrs({1, 1, 1, 2, 3, 1, 1, false, {}}));
  EXPECT_EQ(made[0].at(0), 0);             // no visible key
  EXPECT_TRUE(std::isnan(made[0].at(1)));  // all visible logits are -inf
}

TEST(Attention, RejectsUnsupportedOperands) {
  const Case c{1, 2, 2, 5, 6, 4, 4, false, {}};
  for (const DType dtype : {DType::F16, DType::BF16}) {
    const Operands o(c, dtype);
    EXPECT_THROW(run("attend", o.forward(), o.results(), attrs(c)), std::runtime_error);
  }
  const Operands none({1, 2, 2, 5, 0, 4, 4, false, {}});
  EXPECT_THROW(run("attend", none.forward(), none.results(), attrs(c)), std::runtime_error);
}

}  // namespace
}  // namespace ngd::kernels::test
