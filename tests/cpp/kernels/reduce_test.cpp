// SPDX-License-Identifier: Apache-2.0
// Tests reduce, moments, argmax, argmin and top_k against loops over the whole tensor.
#include <algorithm>
#include <limits>

#include "base/simd.hpp"
#include "device/threads.hpp"
#include "harness.hpp"
#include "kernels/fallback/moments.hpp"
#include "kernels/reduce/loops.hpp"

namespace ngd::kernels::test {
namespace {

Shape reduced_shape(Shape shape, const Integers& axes) {
  for (const std::int64_t axis : axes) shape[static_cast<std::size_t>(axis)] = 1;
  return shape;
}

// For every element of `shape`, in order, the index of its element in the reduced shape.
std::vector<std::int64_t> targets(const Shape& shape, const Integers& axes) {
  const Shape kept = reduced_shape(shape, axes), strides = row_major_strides(kept);
  std::vector<std::int64_t> result(static_cast<std::size_t>(element_count(shape)));
  for (std::size_t i = 0; i < result.size(); ++i) {
    auto rest = static_cast<std::int64_t>(i);
    for (std::size_t axis = shape.size(); axis-- > 0; rest /= shape[axis])
      if (kept[axis] != 1) result[i] += rest % shape[axis] * strides[axis];
  }
  return result;
}

Tensor reduce(const char* op, const Tensor& x, const Integers& axes) {
  return run("reduce", {x}, {{x.type().dtype, reduced_shape(x.type().shape, axes)}},
             attrs_of({{"op", std::string(op)}, {"axes", axes}}))[0];
}

struct Case {
  Shape shape;
  Integers axes;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {{}, {}},
      {{7}, {0}},
      {{1}, {0}},
      {{4099}, {0}},
      {{200003}, {0}},
      {{128, 10}, {1}},
      {{128, 10}, {0}},
      {{128, 100}, {0}},
      {{128, 100}, {}},
      {{37, 1023}, {0}},
      {{37, 1023}, {1}},
      {{70001, 3}, {0}},
      {{3, 70001}, {1}},
      {{5, 6, 7}, {1}},
      {{5, 6, 7}, {0, 2}},
      {{5, 6, 7}, {0, 1}},
      {{5, 6, 7}, {1, 2}},
      {{5, 6, 7}, {0, 1, 2}},
      {{3, 1, 4, 1, 65}, {0, 1, 3}},
      {{2, 3, 4, 5, 6}, {1, 3}},
      {{2, 3, 4, 5, 6}, {0, 2, 4}},
      {{40, 30, 600}, {0, 1}},
      {{40, 30, 600}, {0, 2}},
      {{0, 3}, {1}},
      {{3, 0}, {0}},
  };
  return all;
}

TEST(Reduce, IntegersAreExactAndWrap) {
  for (const DType dtype : all_dtypes()) {
    if (!is_integer(dtype)) continue;
    for (const Case& c : cases()) {
      const Tensor x = random_tensor(dtype, c.shape, 1, -100, 100);
      const auto to = targets(c.shape, c.axes);
      const Tensor sum = reduce("sum", x, c.axes), prod = reduce("prod", x, c.axes);
      std::vector<std::uint64_t> sums(static_cast<std::size_t>(sum.count())), prods(sums.size(), 1);
      for (std::size_t i = 0; i < to.size(); ++i) {
        const auto k = static_cast<std::size_t>(to[i]);
        sums[k] += static_cast<std::uint64_t>(x.integer(static_cast<std::int64_t>(i)));
        prods[k] *= static_cast<std::uint64_t>(x.integer(static_cast<std::int64_t>(i)));
      }
      Tensor expected_sum(sum.type()), expected_prod(sum.type());
      for (std::size_t k = 0; k < sums.size(); ++k) {
        expected_sum.set(static_cast<std::int64_t>(k), sums[k]);
        expected_prod.set(static_cast<std::int64_t>(k), prods[k]);
      }
      ASSERT_EQ(sum, expected_sum) << to_string(x.type());
      ASSERT_EQ(prod, expected_prod) << to_string(x.type());
    }
  }
}

TEST(Reduce, MaxAndMinOfEveryDtype) {
  for (const DType dtype : all_dtypes())
    for (const Case& c : cases()) {
      const Tensor x = random_tensor(dtype, c.shape, 2, -100, 100);
      if (x.count() == 0) continue;
      const auto to = targets(c.shape, c.axes);
      const Tensor max = reduce("max", x, c.axes), min = reduce("min", x, c.axes);
      std::vector<double> highest(static_cast<std::size_t>(max.count()), -1e9), lowest(highest);
      std::fill(lowest.begin(), lowest.end(), 1e9);
      for (std::size_t i = 0; i < to.size(); ++i) {
        const auto k = static_cast<std::size_t>(to[i]);
        highest[k] = std::max(highest[k], x.at(static_cast<std::int64_t>(i)));
        lowest[k] = std::min(lowest[k], x.at(static_cast<std::int64_t>(i)));
      }
      for (std::int64_t k = 0; k < max.count(); ++k) {
        ASSERT_EQ(max.at(k), highest[static_cast<std::size_t>(k)]) << to_string(x.type());
        ASSERT_EQ(min.at(k), lowest[static_cast<std::size_t>(k)]) << to_string(x.type());
      }
    }
}

// Rounded once from a nearly exact sum: half a unit, and the small error of the sum.
TEST(Reduce, FloatSumsAndMeansAreAccurate) {
  for (const DType dtype : {DType::F16, DType::BF16, DType::F32, DType::F64})
    for (const Case& c : cases()) {
      const Tensor x = random_floats(dtype, c.shape, 3, 0.5, 1.5);
      const auto to = targets(c.shape, c.axes);
      const Tensor sum = reduce("sum", x, c.axes), mean = reduce("mean", x, c.axes);
      std::vector<long double> exact(static_cast<std::size_t>(sum.count()));
      for (std::size_t i = 0; i < to.size(); ++i)
        exact[static_cast<std::size_t>(to[i])] += x.at(static_cast<std::int64_t>(i));
      const double unit = dtype == DType::F16    ? 0x1p-11
                          : dtype == DType::BF16 ? 0x1p-8
                          : dtype == DType::F32  ? 0x1p-21
                                                 : 0x1p-49;
      const auto n = static_cast<double>(sum.count() == 0 ? 0 : x.count() / sum.count());
      for (std::int64_t k = 0; k < sum.count(); ++k) {
        const auto e = static_cast<double>(exact[static_cast<std::size_t>(k)]);
        if (dtype != DType::F16 || e < 60000) {
          ASSERT_NEAR(sum.at(k), e, unit * 1.01 * e) << to_string(x.type());
        }
        if (n > 0) {
          ASSERT_NEAR(mean.at(k), e / n, unit * 1.01 * e / n) << to_string(x.type());
        } else {
          ASSERT_TRUE(std::isnan(mean.at(k)));
        }
      }
    }
}

TEST(Reduce, ProductsOfFloats) {
  for (const DType dtype : {DType::F16, DType::BF16, DType::F32, DType::F64}) {
    const Tensor x = random_floats(dtype, {6, 5}, 4, 0.5, 1.5);
    for (const std::int64_t axis : {0, 1}) {
      const Tensor prod = reduce("prod", x, {axis});
      for (std::int64_t k = 0; k < prod.count(); ++k) {
        double exact = 1;
        for (std::int64_t i = 0; i < (axis == 0 ? 6 : 5); ++i)
          exact *= axis == 0 ? x.at(i * 5 + k) : x.at(k * 5 + i);
        const double unit = dtype == DType::F16 ? 0x1p-11 : dtype == DType::BF16 ? 0x1p-8 : 0x1p-21;
        ASSERT_NEAR(prod.at(k), exact, unit * 1.01 * exact);
      }
    }
  }
}

TEST(Reduce, EmptySetsGiveTheIdentity) {
  for (const DType dtype : {DType::F16, DType::F32, DType::F64, DType::I32}) {
    const Tensor x(dtype, {4, 0, 3});
    for (const Integers& axes : {Integers{1}, Integers{0, 1}, Integers{1, 2}}) {
      const Tensor sum = reduce("sum", x, axes), prod = reduce("prod", x, axes);
      ASSERT_GT(sum.count(), 0);
      for (std::int64_t k = 0; k < sum.count(); ++k) {
        EXPECT_EQ(sum.at(k), 0);
        EXPECT_EQ(prod.at(k), 1);
        EXPECT_TRUE(!is_floating(dtype) || std::isnan(reduce("mean", x, axes).at(k)));
      }
    }
  }
}

TEST(Reduce, NanAndInfinityPropagate) {
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  for (const DType dtype : {DType::F16, DType::BF16, DType::F32, DType::F64})
    for (const Shape& shape : {Shape{3000, 1}, Shape{1, 3000}, Shape{60, 50}})
      for (const std::int64_t at : {0, 17, 2047, 2999}) {
        Tensor x = random_floats(dtype, shape, 5);
        x.set(at, nan);
        for (const char* op : {"sum", "mean", "max", "min", "prod"})
          EXPECT_TRUE(std::isnan(reduce(op, x, {0, 1}).at(0))) << op << ' ' << to_string(x.type());
        const Tensor columns = reduce("max", x, {0});
        for (std::int64_t j = 0; j < columns.count(); ++j)
          EXPECT_EQ(std::isnan(columns.at(j)), j == at % shape[1]);
        x.set(at, inf);
        EXPECT_EQ(reduce("sum", x, {0, 1}).at(0), inf);
        EXPECT_EQ(reduce("max", x, {0, 1}).at(0), inf);
      }
}

TEST(Reduce, BoolMaxIsOrAndMinIsAnd) {
  const Tensor x(DType::Bool, {3, 2}, Integers{0, 0, 0, 1, 1, 1});
  const Tensor any = reduce("max", x, {1}), all = reduce("min", x, {1});
  EXPECT_EQ(any, Tensor(DType::Bool, {3, 1}, Integers{0, 1, 1}));
  EXPECT_EQ(all, Tensor(DType::Bool, {3, 1}, Integers{0, 0, 1}));
}

TEST(Reduce, BitsDoNotDependOnTheNumberOfThreads) {
  for (const DType dtype : {DType::F32, DType::F64, DType::F16})
    for (const Case& c : {Case{{300001}, {0}}, Case{{30001, 17}, {0}}, Case{{17, 30001}, {1}},
                          Case{{64, 100, 50}, {0, 2}}}) {
      const Tensor x = random_floats(dtype, c.shape, 6);
      const Tensor several = reduce("sum", x, c.axes);
      device::set_thread_share(1);
      ASSERT_EQ(device::thread_count(), 1);
      const Tensor single = reduce("sum", x, c.axes);
      device::set_thread_share(device::available_cores());
      EXPECT_EQ(several, single) << to_string(x.type());
    }
}

const reduce::ReduceTable* best_table() {
  using namespace reduce;
  return &NGD_SIMD_SELECT(simd_level(), reduce_table)();
}

TEST(Reduce, BitsDoNotDependOnTheSimdLevel) {
  const reduce::ReduceTable& best = *best_table();
  const reduce::ReduceTable& base = reduce::baseline::reduce_table();
  for (const DType dtype : {DType::F32, DType::F64})
    for (int r = 0; r < reduce::kReductionCount; ++r)
      for (const std::int64_t n : {1, 9, 70, 1030, 5000}) {
        const Tensor x = random_floats(dtype, {n * 3}, 8);
        const auto by = [&](const reduce::ReduceTable& table) {
          const reduce::ReduceLoops& loops = table[r][static_cast<int>(dtype)];
          std::vector<double> out(static_cast<std::size_t>(n));
          loops.clear(out.data(), n);
          loops.columns(x.data(), 3, n, n, out.data());
          loops.row(x.data(), n * 3, out.data());
          return out;
        };
        EXPECT_EQ(by(best), by(base)) << n;
      }
}

TEST(Reduce, RejectsUnsupportedOperands) {
  const auto reason = [](const char* op, DType dtype, Shape in, Shape out, Integers axes) {
    const KernelQuery query{"reduce",
                            {{dtype, in}},
                            {{dtype, out}},
                            attrs_of({{"op", std::string(op)}, {"axes", axes}})};
    return refusal_of(query);
  };
  EXPECT_NE(reason("mean", DType::I32, {3}, {}, {0}).find("mean supports only float dtypes"),
            std::string::npos);
  EXPECT_NE(reason("sum", DType::Bool, {3}, {}, {0}).find("not support bool"), std::string::npos);
  EXPECT_NE(reason("median", DType::F32, {3}, {}, {0}).find("median"), std::string::npos);
  EXPECT_NE(reason("max", DType::F32, {0}, {}, {0}).find("no elements"), std::string::npos);
  EXPECT_NE(reason("sum", DType::F32, {3}, {3}, {0}).find("kept axes"), std::string::npos);
  EXPECT_NE(reason("sum", DType::F32, {3}, {}, {1}).find("axis 1"), std::string::npos);
}

TEST(ArgReduce, FirstOfEqualsAndNanFirst) {
  for (const DType dtype : all_dtypes())
    for (const Shape& shape : {Shape{9}, Shape{4, 7}, Shape{3, 5, 6}, Shape{2, 1, 3}})
      for (std::size_t axis = 0; axis < shape.size(); ++axis) {
        Tensor x = random_tensor(dtype, shape, 7, -2, 2);
        if (is_floating(dtype)) {
          x.set(x.count() / 2, std::nan(""));
          x.set(x.count() - 1, std::nan(""));
        }
        Shape out = shape;
        out.erase(out.begin() + static_cast<std::ptrdiff_t>(axis));
        const Attrs attrs = attrs_of({{"axis", static_cast<std::int64_t>(axis)}});
        const Tensor max = run("argmax", {x}, {{DType::I64, out}}, attrs)[0];
        const Tensor min = run("argmin", {x}, {{DType::I64, out}}, attrs)[0];
        const std::int64_t inner = row_major_strides(shape)[axis];
        for (std::int64_t k = 0; k < max.count(); ++k) {
          const std::int64_t first = k / inner * inner * shape[axis] + k % inner;
          std::int64_t highest = 0, lowest = 0;
          for (std::int64_t i = 1; i < shape[axis]; ++i) {
            const double v = x.at(first + i * inner);
            const double h = x.at(first + highest * inner), l = x.at(first + lowest * inner);
            if (!std::isnan(h) && (std::isnan(v) || v > h)) highest = i;
            if (!std::isnan(l) && (std::isnan(v) || v < l)) lowest = i;
          }
          ASSERT_EQ(max.integer(k), highest);
          ASSERT_EQ(min.integer(k), lowest);
        }
      }
}

TEST(ArgReduce, EmptyAxesAreRejectedAndEmptyResultsAreNot) {
  const Tensor x(DType::F32, {0, 3});
  EXPECT_EQ(
      run("argmax", {x}, {{DType::I64, {0}}}, attrs_of({{"axis", std::int64_t{1}}}))[0].count(), 0);
  const KernelQuery query{
      "argmax", {x.type()}, {{DType::I64, {3}}}, attrs_of({{"axis", std::int64_t{0}}})};
  EXPECT_EQ(refusal_of(query), "argmax of no elements");
}

// In order of size, equal values in order of their indices, with NaN as the largest.
void expect_order(std::int64_t largest) {
  const auto larger = [](double a, double b) { return std::isnan(a) ? !std::isnan(b) : a > b; };
  const auto precedes = [&](double a, double b) { return largest ? larger(a, b) : larger(b, a); };
  const Attrs attrs = attrs_of({{"largest", largest}});
  for (const DType dtype : all_dtypes())
    for (const Shape& shape : {Shape{9}, Shape{4, 7}, Shape{3, 1}, Shape{2, 200}})
      for (const std::int64_t k : {std::int64_t{0}, std::int64_t{1}, shape.back()}) {
        Tensor x = random_tensor(dtype, shape, 7, -2, 2);
        if (is_floating(dtype)) {
          x.set(x.count() / 2, std::nan(""));
          x.set(x.count() - 1, std::nan(""));
        }
        Shape out = shape;
        out.back() = k;
        const std::vector<TensorType> types = {{dtype, out}, {DType::I64, out}};
        const std::vector<Tensor> both = run("top_k", {x}, types, attrs);
        const Tensor &values = both[0], &places = both[1];
        EXPECT_EQ(run("top_k", {x}, types, attrs, "", {}, {1})[0], values);
        EXPECT_EQ(run("top_k", {x}, types, attrs, "", {}, {0})[1], places);
        for (std::int64_t row = 0; row < x.count() / shape.back(); ++row) {
          const std::int64_t first = row * shape.back();
          std::vector<bool> taken(static_cast<std::size_t>(shape.back()));
          for (std::int64_t i = 0; i < k; ++i) {
            std::int64_t best = -1;
            for (std::int64_t j = 0; j < shape.back(); ++j)
              if (!taken[static_cast<std::size_t>(j)] &&
                  (best < 0 || precedes(x.at(first + j), x.at(first + best))))
                best = j;
            taken[static_cast<std::size_t>(best)] = true;
            ASSERT_EQ(places.integer(row * k + i), best);
            const double value = values.at(row * k + i), wanted = x.at(first + best);
            ASSERT_TRUE(value == wanted || (std::isnan(value) && std::isnan(wanted)));
          }
        }
      }
}

TEST(TopK, LargestFirst) { expect_order(1); }

TEST(TopK, SmallestFirst) { expect_order(0); }

TEST(CumSum, AddsUpTheElementsBeforeOrAfter) {
  for (const DType dtype : all_dtypes())
    for (const Shape& shape : {Shape{9}, Shape{3, 40}, Shape{2, 5, 130}, Shape{0, 4}})
      for (const std::int64_t reverse : {0, 1}) {
        if (dtype == DType::Bool) continue;
        const Tensor x = random_tensor(dtype, shape, 8, 0, 2);
        const std::int64_t axis = shape.size() > 1 ? 1 : 0;
        const Attrs attrs = attrs_of({{"axis", axis}, {"reverse", reverse}});
        const Tensor sums = run("cumsum", {x}, {x.type()}, attrs)[0];
        const std::int64_t length = shape[static_cast<std::size_t>(axis)],
                           inner = shape.size() > 2 ? shape[2] : 1;
        for (std::int64_t i = 0; i < x.count(); ++i) {
          const std::int64_t place = i / inner % length, first = i - place * inner;
          double exact = 0;
          for (std::int64_t j = 0; j < length; ++j)
            if (reverse ? j >= place : j <= place) exact += x.at(first + j * inner);
          const double unit = dtype == DType::F16 ? 0x1p-10 : dtype == DType::BF16 ? 0x1p-7 : 1e-6;
          ASSERT_NEAR(sums.at(i), exact, unit * exact) << to_string(x.type());
        }
      }
}

TEST(TopK, RejectsUnsupportedOperands) {
  const auto reason_of = [](Shape in, std::vector<TensorType> outputs) {
    const KernelQuery query{"top_k", {{DType::F32, in}}, outputs, {}};
    return refusal_of(query);
  };
  const auto reason = [&](Shape in, Shape out) {
    return reason_of(in, {{DType::F32, out}, {DType::I64, out}});
  };
  EXPECT_NE(reason_of({3}, {{DType::I64, {3}}}).find("values and positions"), std::string::npos);
  EXPECT_NE(reason_of({3}, {{DType::F64, {3}}, {DType::I64, {3}}}).find("dtype"),
            std::string::npos);
  EXPECT_NE(reason_of({3}, {{DType::F32, {3}}, {DType::I32, {3}}}).find("not i64"),
            std::string::npos);
  EXPECT_NE(reason_of({3}, {{DType::F32, {2}}, {DType::I64, {3}}}).find("different shapes"),
            std::string::npos);
  EXPECT_NE(reason({3}, {4}).find("more elements along the axis"), std::string::npos);
  EXPECT_NE(reason({}, {}).find("other axes"), std::string::npos);
  EXPECT_NE(reason({2, 3}, {3, 3}).find("other axes"), std::string::npos);
}

// Values far from zero, whose sums of squares without a shift would cancel.
TEST(Moments, EqualsLoops) {
  for (const DType dtype : {DType::F32, DType::F64})
    for (const Case& c : cases()) {
      const Tensor x = random_floats(dtype, c.shape, 4, 999, 1001);
      if (x.count() == 0) continue;
      const TensorType type{dtype, reduced_shape(c.shape, c.axes)};
      const auto found = run("moments", {x}, {type, type, type}, attrs_of({{"axes", c.axes}}));
      const auto to = targets(c.shape, c.axes);
      const auto results = static_cast<std::size_t>(type.count());
      const auto n = static_cast<long double>(to.size() / results);
      std::vector<long double> mean(results), variance(results);
      for (std::size_t i = 0; i < to.size(); ++i)
        mean[static_cast<std::size_t>(to[i])] += x.at(static_cast<std::int64_t>(i)) / n;
      for (std::size_t i = 0; i < to.size(); ++i) {
        const auto k = static_cast<std::size_t>(to[i]);
        const long double apart = x.at(static_cast<std::int64_t>(i)) - mean[k];
        variance[k] += apart * apart / n;
      }
      const double unit = dtype == DType::F32 ? 0x1p-20 : 0x1p-44;
      for (std::size_t k = 0; k < results; ++k) {
        const auto at = static_cast<std::int64_t>(k);
        const auto m = static_cast<double>(mean[k]), v = static_cast<double>(variance[k]);
        ASSERT_NEAR(found[0].at(at), m, unit * 1000) << to_string(x.type());
        ASSERT_NEAR(found[0].at(at) + found[1].at(at), m, dtype == DType::F32 ? unit : unit * 1000);
        ASSERT_NEAR(found[2].at(at), v, unit * 4 * (v + 0x1p-20)) << to_string(x.type());
      }
    }
}

TEST(Moments, BitsDependNeitherOnThreadsNorOnTheSimdLevel) {
  using namespace fallback;
  for (const DType dtype : {DType::F32, DType::F64}) {
    for (const Case& c :
         {Case{{300001}, {0}}, Case{{30001, 17}, {0}}, Case{{64, 100, 50}, {0, 2}}}) {
      const Tensor x = random_floats(dtype, c.shape, 6);
      const TensorType type{dtype, reduced_shape(c.shape, c.axes)};
      const auto found = [&] {
        return run("moments", {x}, {type, type, type}, attrs_of({{"axes", c.axes}}));
      };
      const auto several = found();
      device::set_thread_share(1);
      const auto single = found();
      device::set_thread_share(device::available_cores());
      EXPECT_EQ(several, single) << to_string(x.type());
    }
    const auto best = NGD_SIMD_SELECT(simd_level(), moment_table)()[dtype == DType::F64];
    const auto base = baseline::moment_table()[dtype == DType::F64];
    for (const std::int64_t n : {1, 9, 70, 1030, 5000}) {
      const Tensor x = random_floats(dtype, {n * 3}, 8), shifts = random_floats(dtype, {n}, 9);
      const auto by = [&](const MomentLoops& loops) {
        std::vector<double> out(static_cast<std::size_t>(2 * n));
        loops.columns(x.data(), 3, n, n, shifts.data(), out.data(), out.data() + n);
        loops.row(x.data(), n * 3, shifts.data(), out.data(), out.data() + n);
        return out;
      };
      EXPECT_EQ(by(best), by(base)) << n;
    }
  }
}

TEST(Moments, NanAndInfinityPropagate) {
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()})
    for (const Shape& shape : {Shape{3, 2}, Shape{100003, 2}}) {
      Tensor x = random_floats(DType::F32, shape, 4);
      x.set(2, bad);  // in the first of two columns
      const TensorType type{DType::F32, {1, 2}};
      const auto found = run("moments", {x}, {type, type, type}, attrs_of({{"axes", Integers{0}}}));
      EXPECT_TRUE(std::isnan(found[2].at(0)));
      EXPECT_FALSE(std::isnan(found[2].at(1)));
    }
}

// A kernel body whose result is reduced: in one kernel, and in separate kernels.
struct Chain {
  Tensor x, w;
  std::vector<std::int64_t> strides;  // of both operands
  Case reduced;

  Attrs program(Integers results) const {
    const std::string d(short_name_of(x.type().dtype));
    return attrs_of({{"program", "multiply:" + d + " i0 i1;subtract:" + d + " t0 i0"},
                     {"results", std::move(results)},
                     {"input_strides", strides}});
  }
  TensorType kept() const { return {x.type().dtype, reduced_shape(reduced.shape, reduced.axes)}; }
  KernelQuery query() const {
    Attrs attrs = program({1});
    attrs.set("shape", reduced.shape);
    attrs.set("axes", reduced.axes);
    attrs.set("reduced", Integers{0, 1, 1});
    attrs.set("reductions", std::vector<std::string>{"sum", "min", "sum"});
    return query_of("elementwise_reduce", {x, w}, {x.type(), kept(), kept(), kept()}, attrs);
  }
  std::vector<Tensor> together() const {
    const KernelQuery q = query();
    return run(q.op, {x, w}, q.outputs, q.attrs);
  }
  std::vector<Tensor> apart() const {
    const auto both = run("elementwise", {x, w}, {x.type(), x.type()}, program({0, 1}));
    return {both[1], reduce("sum", both[0], reduced.axes), reduce("min", both[1], reduced.axes),
            reduce("sum", both[1], reduced.axes)};
  }
};

TEST(ElementwiseReduce, HasTheBitsOfItsParts) {
  int accepted = 0, asked = 0;
  for (const DType dtype : all_dtypes())
    for (const Case& c : cases()) {
      const Shape dense = row_major_strides(c.shape);
      const bool common = dtype == DType::F32 || dtype == DType::F64 || dtype == DType::BF16;
      if (dtype == DType::Bool || element_count(c.shape) == 0) continue;
      if (!common && element_count(c.shape) > 20000) continue;
      const auto random = [&](const Shape& shape, unsigned seed) {
        return is_floating(dtype) ? random_floats(dtype, shape, seed)
                                  : random_tensor(dtype, shape, seed);
      };
      for (const std::size_t varying : {std::size_t{0}, std::size_t{1}, c.shape.size()}) {
        // w varies along the last `count` axes.
        const std::size_t fixed = c.shape.size() - std::min(varying, c.shape.size());
        std::vector<std::int64_t> strides(dense.begin(), dense.end());
        for (std::size_t a = 0; a < c.shape.size(); ++a)
          strides.push_back(a < fixed ? 0 : dense[a]);
        const Shape part(c.shape.begin() + static_cast<std::ptrdiff_t>(fixed), c.shape.end());
        const Chain chain{random(c.shape, 1), random(part, 2), strides, c};
        const KernelQuery query = chain.query();
        ++asked;
        if (offer_of(query, "fused").kernel == nullptr) continue;
        ++accepted;
        const auto found = chain.together();
        EXPECT_EQ(found, chain.apart()) << to_string(chain.x.type()) << " " << varying;
        device::set_thread_share(1);
        EXPECT_EQ(found, chain.together()) << to_string(chain.x.type());
        device::set_thread_share(device::available_cores());
      }
    }
  EXPECT_GT(accepted * 10, asked * 8);
}

TEST(ElementwiseReduce, RejectsUnsupportedBodies) {
  const Shape shape{4, 6};
  const Tensor x = random_floats(DType::F32, shape, 1);
  const auto refusal = [&](const char* name, Attr value) {
    Chain chain{x, x, {6, 1, 6, 1}, {shape, {1}}};
    KernelQuery query = chain.query();
    query.attrs.set(name, std::move(value));
    return offer_of(query, "fused").refusal;
  };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(refusal("axes", Integers{1}), "");
  EXPECT_EQ(refusal("axes", Integers{2}), "axis 2 is not in the shape");
  EXPECT_EQ(refusal("axes", Integers{0}), "a reduced output does not have the kept axes");
  EXPECT_EQ(refusal("reduced", Integers{0, 1, 2}), "reduced name 2, which is not a statement");
  EXPECT_EQ(refusal("reduced", Integers{0}), "1 results and 1 reduced statements for 4 outputs");
  EXPECT_EQ(refusal("reductions", Texts{"sum", "min", "range"}), "there is no reduction range");
}

TEST(Moments, RejectsEmptyTensors) {
  const TensorType x{DType::F32, {3, 0}}, out{DType::F32, {3, 1}};
  const KernelQuery query{"moments", {x}, {out, out, out}, attrs_of({{"axes", Integers{1}}})};
  EXPECT_EQ(offer_of(query, "fallback").kernel, nullptr);
}

}  // namespace
}  // namespace ngd::kernels::test
